"""The service that the contract tests call, in this process or, run as a program, behind stdio."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Never

import msgspec
import trio

import rlm_wire


class Add(rlm_wire.Request[int], tag="calc.add"):
    x: int
    y: int


class Echo(rlm_wire.Request[bytes], tag="calc.echo"):
    data: bytes


class Anything(rlm_wire.Request[Any], tag="calc.anything"):
    what: str


class Refuse(rlm_wire.Request[None], tag="calc.refuse"):
    code: str


class Crash(rlm_wire.Request[None], tag="calc.crash"):
    secret: str


class Wait(rlm_wire.Request[str], tag="calc.wait"):
    """Never returns by itself; leaves its mark in `Marks` when it is stopped."""

    name: str


class Marks(rlm_wire.Request[list[str]], tag="calc.marks"):
    pass


class Count(rlm_wire.StreamRequest[int, int, Never], tag="calc.count"):
    """Counts to `to` (None: for ever); stoppable, and then answers how far it came."""

    to: int | None


class Blobs(rlm_wire.StreamRequest[int, bytes, Never], tag="calc.blobs"):
    count: int
    size: int


class Total(rlm_wire.StreamRequest[int, Never, int], tag="calc.total"):
    pass


class Swap(rlm_wire.StreamRequest[int, str, str], tag="calc.swap"):
    """Answers each item with its upper case, then how many there were."""


class Ask(rlm_wire.Request[str], tag="client.ask"):
    question: str


class Relay(rlm_wire.Request[str], tag="calc.relay"):
    """Asks the caller's own service."""

    question: str


class Unknown(rlm_wire.Request[int], tag="calc.unknown"):
    pass


class State(msgspec.Struct):
    marks: list[str] = []


@asynccontextmanager
async def lifespan(peer: rlm_wire.Peer) -> AsyncIterator[State]:
    yield State()


service = rlm_wire.Service(lifespan)


@service.handle(Add)
def add(request: Add) -> int:
    return request.x + request.y


@service.handle(Echo)
def echo(request: Echo) -> bytes:
    return request.data


@service.handle(Anything)
def anything(request: Anything) -> Any:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    return {"surrogate": "\udc80", "huge": 2**70, "object": object(), "deep": deep, "large": b"x" * 17_000_000}[
        request.what
    ]


@service.handle(Refuse)
async def refuse(request: Refuse) -> None:
    raise rlm_wire.CallError(request.code, "no", data={"why": 1}, retryable=True)  # type: ignore[arg-type]


@service.handle(Crash)
async def crash(request: Crash) -> None:
    raise RuntimeError(f"a bug, with {request.secret} in its text")


@service.handle(Wait)
async def wait(request: Wait, call: rlm_wire.IncomingCall[Never, Never]) -> str:
    marks: list[str] = call.state.marks
    marks.append(f"{request.name} started")
    try:
        await trio.sleep_forever()
    finally:
        marks.append(f"{request.name} stopped")
    return ""


@service.handle(Marks)
def marks(request: Marks, call: rlm_wire.IncomingCall[Never, Never]) -> list[str]:
    found: list[str] = call.state.marks
    return found


@service.handle(Count, stoppable=True)
async def count(request: Count, call: rlm_wire.IncomingCall[int, Never]) -> int:
    number = 0
    with call.stoppable():
        while request.to is None or number < request.to:
            await call.send(number)
            number += 1
    return number


@service.handle(Blobs)
async def blobs(request: Blobs, call: rlm_wire.IncomingCall[bytes, Never]) -> int:
    data = b"x" * request.size
    for _ in range(request.count):
        await call.send(data)
    return request.count


@service.handle(Total)
async def total(request: Total, call: rlm_wire.IncomingCall[Never, int]) -> int:
    return sum([item async for item in call])


@service.handle(Swap)
async def swap(request: Swap, call: rlm_wire.IncomingCall[str, str]) -> int:
    number = 0
    async for item in call:
        await call.send(item.upper())
        number += 1
    return number


@service.handle(Relay)
async def relay(request: Relay, call: rlm_wire.IncomingCall[Never, Never]) -> str:
    return await call.peer.call(Ask(request.question))


async def main() -> None:
    async with rlm_wire.serve("stdio:", service) as server:
        await server.wait_closed()


if __name__ == "__main__":
    sys.setrecursionlimit(1000)
    trio.run(main)
