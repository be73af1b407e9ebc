"""Baseline: Trio's own streams, one request after another, a 4-byte length, msgspec. No features, nothing shared."""

from __future__ import annotations

import functools
import sys
from time import perf_counter

import msgspec
import trio

from bench.messages import ITEM, LARGE, SMALL, Echo, Echoed
from bench.subjects import announce, obey, server_process

encode = msgspec.msgpack.Encoder().encode
Requests = Echo | int


class Frames:
    """Frames of a Trio stream."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def send(self, body: bytes) -> None:
        await self._stream.send_all(len(body).to_bytes(4, "big") + body)

    async def receive(self) -> bytes:
        """The next frame; empty at the end of the stream."""
        header = await self._take(4)
        return await self._take(int.from_bytes(header, "big"))

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = await self._stream.receive_some()
            if not data:
                return b""
            self._buffer += data
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return taken


async def answer(stream: trio.abc.Stream) -> None:
    frames = Frames(stream)
    decode = msgspec.msgpack.Decoder(Requests).decode
    while body := await frames.receive():
        request = decode(body)
        if isinstance(request, Echo):
            await frames.send(encode(Echoed(request.data)))
        else:
            item = Echoed(bytes(ITEM))
            for _ in range(request):
                await frames.send(encode(item))


def serve(name: str) -> None:
    sys.stdin.readline()
    trio.run(_serve)


async def _serve() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(functools.partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        announce(str(listeners[0].socket.getsockname()[1]))
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


class Client:
    def __init__(self, stream: trio.abc.Stream) -> None:
        self._frames = Frames(stream)
        self._decode = msgspec.msgpack.Decoder(Echoed).decode

    async def echo(self, count: int, data: bytes = SMALL) -> list[float]:
        seconds = []
        for _ in range(count):
            start = perf_counter()
            await self._frames.send(encode(Echo(data)))
            self._decode(await self._frames.receive())
            seconds.append(perf_counter() - start)
        return seconds

    async def large(self, count: int) -> list[float]:
        return await self.echo(count, LARGE)

    async def stream(self, count: int) -> list[float]:
        start = perf_counter()
        await self._frames.send(encode(count))
        for _ in range(count):
            self._decode(await self._frames.receive())
        return [perf_counter() - start]


def drive(name: str) -> None:
    with server_process(name, "") as (port, pid):
        trio.run(_drive, int(port), pid)


async def _drive(port: int, pid: int) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await obey(Client(stream), pid, lambda: trio.to_thread.run_sync(sys.stdin.readline))
