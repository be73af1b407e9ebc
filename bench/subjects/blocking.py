"""Baseline: blocking sockets, a 4-byte length, msgspec. As fast as plain Python gets, and it can do nothing else."""

from __future__ import annotations

import socket
import sys
from time import perf_counter

import msgspec
import trio

from bench.messages import IN_FLIGHT, LARGE, SMALL, Echo, Echoed
from bench.subjects import announce, obey, server_process

encode = msgspec.msgpack.Encoder().encode


class Frames:
    """Frames of a socket, received a buffer at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._view = memoryview(bytearray(len(LARGE) + 64 * 1024))
        self._end = 0

    def send(self, bodies: list[bytes]) -> None:
        self._socket.sendall(b"".join([piece for body in bodies for piece in (len(body).to_bytes(4, "big"), body)]))

    def receive(self) -> list[memoryview]:
        """What is here, at least one frame; nothing at the end of the stream. Valid until the next call."""
        frames: list[memoryview] = []
        start = 0
        while not frames:
            received = self._socket.recv_into(self._view[self._end :])
            if not received:
                break
            self._end += received
            while (body := start + 4) <= self._end:
                end = body + int.from_bytes(self._view[start:body], "big")
                if end > self._end:
                    break
                frames.append(self._view[body:end])
                start = end
        if start < self._end:
            frames = [memoryview(bytes(frame)) for frame in frames]
            self._view[: self._end - start] = self._view[start : self._end]
        self._end -= start
        return frames


def serve(name: str) -> None:
    sys.stdin.readline()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announce(str(listener.getsockname()[1]))
        frames = Frames(listener.accept()[0])
    decode = msgspec.msgpack.Decoder(Echo).decode
    while requests := frames.receive():
        frames.send([encode(Echoed(decode(request).data)) for request in requests])


class Client:
    def __init__(self, sock: socket.socket) -> None:
        self._frames = Frames(sock)
        self._decode = msgspec.msgpack.Decoder(Echoed).decode

    async def echo(self, count: int, data: bytes = SMALL) -> list[float]:
        seconds = []
        for _ in range(count):
            start = perf_counter()
            self._frames.send([encode(Echo(data))])
            for reply in self._frames.receive():
                self._decode(reply)
            seconds.append(perf_counter() - start)
        return seconds

    async def flood(self, count: int) -> list[float]:
        start = perf_counter()
        self._frames.send([encode(Echo(SMALL)) for _ in range(IN_FLIGHT)])
        sent, received = IN_FLIGHT, 0
        while received < count:
            replies = [self._decode(body) for body in self._frames.receive()]
            received += len(replies)
            more = min(len(replies), count - sent)
            if more:
                self._frames.send([encode(Echo(SMALL)) for _ in range(more)])
                sent += more
        return [perf_counter() - start]

    async def large(self, count: int) -> list[float]:
        return await self.echo(count, LARGE)


def drive(name: str) -> None:
    with server_process(name, "") as (port, pid), socket.create_connection(("127.0.0.1", int(port))) as sock:
        trio.run(obey, Client(sock), pid, lambda: trio.to_thread.run_sync(sys.stdin.readline))
