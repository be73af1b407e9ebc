"""A client far away from its servers, each in a namespace of its own: the subject of `measures.links`.

`python -m bench.subjects.far URL WORKER_URL` is the client, the token on stdin; it prints one JSON object of durations
in seconds. A plain socket that sends the same stream is beside the server, at RAW.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import trio

import rlm_wire
from bench.messages import IN_FLIGHT, ITEM, SMALL, Echo, Stream
from bench.subjects import announce
from bench.subjects.wire import service
from bench.tunnel import ADDRESSES
from rlm_harness.workspace import Workspace

RAW = 7100
STREAM = 64 * 1024 * 1024
ROUNDS = 5


def serve(name: str) -> None:
    trio.run(_serve)


async def _serve() -> None:
    token = sys.stdin.readline().strip()
    async with rlm_wire.serve(f"tcp://{ADDRESSES[1]}:0", service, token) as server, trio.open_nursery() as nursery:
        await nursery.start(trio.serve_tcp, _send_stream, RAW)
        announce(server.urls[0])
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


async def _send_stream(stream: trio.SocketStream) -> None:
    async with stream:
        await stream.receive_some(1)
        await stream.send_all(bytes(STREAM))


class Stopwatch:
    """What took how long."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def time(self, what: str) -> Iterator[None]:
        start = perf_counter()
        yield
        self.seconds.setdefault(what, []).append(perf_counter() - start)


async def measure(url: str, worker_url: str, token: str) -> dict[str, list[float]]:
    watch = Stopwatch()
    for _ in range(ROUNDS):
        await _calls(url, token, watch)
        await _raw_stream(watch)
    await _tools(worker_url, token, watch)
    return watch.seconds


async def _calls(url: str, token: str, watch: Stopwatch) -> None:
    start = perf_counter()
    async with rlm_wire.connect(url, token=token) as peer:
        await peer.call(Echo(SMALL))
        watch.seconds.setdefault("first call", []).append(perf_counter() - start)
        with watch.time("call"):
            await peer.call(Echo(SMALL))
        with watch.time("burst"):
            async with trio.open_nursery() as nursery:
                for _ in range(IN_FLIGHT):
                    nursery.start_soon(peer.call, Echo(SMALL))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_beside, peer, watch)
            with watch.time("stream"):
                async with peer.open(Stream(STREAM // ITEM)) as call:
                    async for _ in call:
                        pass
                    await call.result()
            nursery.cancel_scope.cancel()


async def _beside(peer: rlm_wire.Peer, watch: Stopwatch) -> None:
    while True:
        with watch.time("call beside"):
            await peer.call(Echo(SMALL))


async def _raw_stream(watch: Stopwatch) -> None:
    async with await trio.open_tcp_stream(ADDRESSES[1], RAW) as stream:
        with watch.time("raw stream"):
            await stream.send_all(b"x")
            async for _ in stream:
                pass


async def _tools(url: str, token: str, watch: Stopwatch) -> None:
    async with Workspace.connect(url, token=token) as workspace, workspace.agent() as agent:
        await agent.bash("true")
        await agent.ipython("1")
        for _ in range(ROUNDS):
            with watch.time("bash"):
                await agent.bash("true")
            with watch.time("ipython"):
                await agent.ipython("1")


if __name__ == "__main__":
    print(json.dumps(trio.run(measure, sys.argv[1], sys.argv[2], sys.stdin.readline().strip())))
