"""What type checkers must know of the API. Not run: `test_typing.py` has mypy and pyright read it.

`reveal_type` lines carry the type that both must report; `# error` lines must be errors, and no others may be.
"""

from __future__ import annotations

from typing import Never, reveal_type

import msgspec

import rlm_wire
import rlm_wire.asyncio
import rlm_wire.blocking


class Chunk(msgspec.Struct):
    text: str


class Summary(msgspec.Struct):
    chunks: int


class Add(rlm_wire.Request[int], tag="typing.add"):
    x: int
    y: int


class Tail(rlm_wire.StreamRequest[Summary, Chunk, Never], tag="typing.tail"):
    path: str


class Feed(rlm_wire.StreamRequest[int, Chunk, str], tag="typing.feed"):
    pass


async def under_trio(peer: rlm_wire.Peer) -> None:
    reveal_type(await peer.call(Add(1, 2)))  # int
    reveal_type(await peer.call(Tail("log")))  # Summary
    async with peer.open(Tail("log"), timeout=1.0) as call:
        reveal_type([chunk async for chunk in call])  # list[Chunk]
        reveal_type(await call.result())  # Summary
    async with peer.open(Feed()) as feed:
        await feed.send("text")
        await feed.send(1)  # error
    Add("1", 2)  # error
    Add(1)  # error
    Add(1, 2, 3)  # error
    await peer.call(Chunk("no request"))  # error
    peer.open(Add(1, 2))  # error
    await peer.call(Add(1, 2), timeout="soon")  # error


async def under_asyncio(peer: rlm_wire.asyncio.Peer) -> None:
    reveal_type(await peer.call(Add(1, 2)))  # int
    async with peer.open(Feed()) as call:
        reveal_type([chunk async for chunk in call])  # list[Chunk]
        await call.send("text")
        await call.send(1)  # error
        reveal_type(await call.result())  # int
    peer.open(Add(1, 2))  # error
    async with rlm_wire.asyncio.connect("tcp://127.0.0.1:1") as connected:
        reveal_type(connected.info.features)  # list[str]


def in_plain_code(peer: rlm_wire.blocking.Peer) -> None:
    reveal_type(peer.call(Add(1, 2)))  # int
    with peer.open(Feed()) as call:
        reveal_type(list(call))  # list[Chunk]
        call.send("text")
        call.send(1)  # error
        reveal_type(call.result())  # int
    peer.open(Add(1, 2))  # error
    with rlm_wire.blocking.connect("tcp://127.0.0.1:1", limits=rlm_wire.Limits()) as connected:
        reveal_type(connected.ping())  # float


def handlers(service: rlm_wire.Service) -> None:
    @service.handle(Feed, stoppable=True)
    async def feed(request: Feed, call: rlm_wire.IncomingCall[Chunk, str]) -> int:
        await call.send(Chunk("text"))
        await call.send("text")  # error
        reveal_type([item async for item in call])  # list[str]
        with call.stoppable() as scope:
            reveal_type(scope.cancelled_caught)  # bool
        return 0

    @service.handle(Add)
    def add(request: Add) -> int:
        return request.x + request.y

    reveal_type(add(Add(1, 2)))  # int
