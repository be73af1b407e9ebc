"""rlm_wire with all it does: `peer.call` and `peer.open` over TCP with a token, stdio, and TLS."""

from __future__ import annotations

import os
import secrets
import sys
from time import monotonic_ns, perf_counter
from typing import Never

import trio

import rlm_wire
from bench.messages import IN_FLIGHT, ITEM, LARGE, SMALL, Echo, Echoed, Hang, ServerPid, Stream
from bench.subjects import announce, obey, server_process

ADDRESSES = {"tcp": "tcp://127.0.0.1:0", "tls": "tls://127.0.0.1:0"}

service = rlm_wire.Service()


@service.handle(Echo)
def echo(request: Echo) -> Echoed:
    return Echoed(request.data)


@service.handle(ServerPid)
def server_pid(request: ServerPid) -> int:
    return os.getpid()


@service.handle(Stream)
async def stream(request: Stream, call: rlm_wire.IncomingCall[Echoed, Never]) -> int:
    item = Echoed(bytes(ITEM))
    for _ in range(request.count):
        await call.send(item)
    return request.count


@service.handle(Hang, stoppable=True)
async def hang(request: Hang, call: rlm_wire.IncomingCall[Never, Never]) -> int:
    with call.stoppable():
        await trio.sleep_forever()
    return monotonic_ns()


def serve(name: str) -> None:
    trio.run(_serve, name)


async def _serve(name: str) -> None:
    if name == "stdio":
        async with rlm_wire.serve("stdio:", service) as server:
            await server.wait_closed()
        return
    token = sys.stdin.readline().strip()
    async with rlm_wire.serve(ADDRESSES[name], service, token) as server:
        announce(server.urls[0])
        await trio.to_thread.run_sync(sys.stdin.read)


class Client:
    def __init__(self, peer: rlm_wire.Peer) -> None:
        self._peer = peer

    async def echo(self, count: int, data: bytes = SMALL) -> list[float]:
        seconds = []
        for _ in range(count):
            start = perf_counter()
            await self._peer.call(Echo(data))
            seconds.append(perf_counter() - start)
        return seconds

    async def flood(self, count: int) -> list[float]:
        async def caller() -> None:
            for _ in range(count // IN_FLIGHT):
                await self._peer.call(Echo(SMALL))

        start = perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT):
                nursery.start_soon(caller)
        return [perf_counter() - start]

    async def large(self, count: int) -> list[float]:
        return await self.echo(count, LARGE)

    async def stream(self, count: int) -> list[float]:
        start = perf_counter()
        async with self._peer.open(Stream(count)) as call:
            async for _ in call:
                pass
            await call.result()
        return [perf_counter() - start]

    async def beside(self, count: int) -> list[float]:
        """Small calls, one after another, while a stream of `count` items runs."""
        seconds: list[float] = []
        async with trio.open_nursery() as nursery:

            async def until_cancelled() -> None:
                while True:
                    seconds.extend(await self.echo(1))

            nursery.start_soon(until_cancelled)
            await self.stream(count)
            nursery.cancel_scope.cancel()
        return seconds

    async def cancel(self, count: int) -> list[float]:
        """From `call.cancel()` here to the handler's next line there; both read the same monotonic clock."""
        seconds = []
        for _ in range(count):
            async with self._peer.open(Hang()) as call:
                await self._peer.call(Echo(SMALL))
                start = monotonic_ns()
                call.cancel()
                seconds.append((await call.result() - start) / 1e9)
        return seconds


def drive(name: str) -> None:
    if name == "stdio":
        trio.run(_drive, f"stdio:{sys.executable} -m bench.subjects serve stdio", None)
    else:
        token = secrets.token_hex()
        with server_process(name, token) as (url, _):
            trio.run(_drive, url, token)


async def _drive(url: str, token: str | None) -> None:
    async with rlm_wire.connect(url, token=token) as peer:
        await obey(Client(peer), await peer.call(ServerPid()), lambda: trio.to_thread.run_sync(sys.stdin.readline))
