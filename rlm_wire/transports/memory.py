"""`memory:NAME`: streams inside one Trio run, with the back-pressure of a real one and no operating system involved."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from rlm_wire.errors import TransportError
from rlm_wire.transports.base import Buffer, ByteStream, Listener, refuse_ssl_context
from rlm_wire.transports.exclusive import Exclusive

CAPACITY: Final = 262_144
"""Bytes in flight in each direction before a sender waits: about what a socket pair holds."""

_listening: trio.lowlevel.RunVar[dict[str, MemoryListener]] = trio.lowlevel.RunVar("memory listeners")


class _Pipe:
    """One direction. Wakes its reader and its writer whenever the other changed something."""

    def __init__(self) -> None:
        self.held = bytearray()
        self.writer_closed = False
        self.reader_closed = False
        self._waiting = trio.lowlevel.ParkingLot()

    async def changed(self) -> None:
        await self._waiting.park()

    def change(self) -> None:
        self._waiting.unpark_all()

    def put(self, data: Sequence[Buffer]) -> int:
        """Take what fits and return its size."""
        taken = 0
        for piece in data:
            room = CAPACITY - len(self.held)
            self.held += piece if len(piece) <= room else memoryview(piece)[:room]
            taken += min(len(piece), room)
            if len(piece) > room:
                break
        if taken:
            self.change()
        return taken


class MemoryStream(ByteStream):
    """One end of `memory_pair()`."""

    private = True

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, description: str) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._receiver = Exclusive("receiving from")
        self._sender = Exclusive("sending to")
        self._closed = False
        self._torn = False
        self.description = description

    async def receive_into(self, buffer: memoryview) -> int:
        with self._receiver:
            await trio.lowlevel.checkpoint()
            pipe = self._incoming
            while not self._closed and not pipe.held and not pipe.writer_closed:
                await pipe.changed()
            self._check_open()
            size = min(len(buffer), len(pipe.held))
            with memoryview(pipe.held) as held:
                buffer[:size] = held[:size]
            del pipe.held[:size]
            pipe.change()
            return size

    async def send(self, data: Sequence[Buffer]) -> None:
        with self._sender:
            await trio.lowlevel.checkpoint()
            self._check_sendable()
            pending = [memoryview(piece) for piece in data if len(piece)]
            try:
                while pending:
                    taken = self._outgoing.put(pending)
                    while pending and taken >= len(pending[0]):
                        taken -= len(pending.pop(0))
                    if pending:
                        pending[0] = pending[0][taken:]
                        await self._outgoing.changed()
                        self._check_sendable()
            except trio.Cancelled:
                self._torn = True
                raise

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        with self._sender:
            self._check_sendable()
            return self._outgoing.put(data)

    async def aclose(self) -> None:
        self._closed = True
        self._outgoing.writer_closed = self._incoming.reader_closed = True
        self._outgoing.change()
        self._incoming.change()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(f"{self.description} is closed")

    def _check_sendable(self) -> None:
        self._check_open()
        if self._torn:
            raise TransportError(f"{self.description}: an earlier send was cancelled half-way; open a new connection")
        if self._outgoing.reader_closed:
            raise TransportError(f"{self.description}: the other side has closed")


def memory_pair(description: str = "memory:") -> tuple[MemoryStream, MemoryStream]:
    """Two connected ends. Each direction holds up to `CAPACITY` bytes."""
    one, other = _Pipe(), _Pipe()
    return MemoryStream(one, other, description), MemoryStream(other, one, description)


class MemoryListener(Listener):
    """The one listener of a name in this Trio run."""

    def __init__(self, name: str) -> None:
        self.urls = [f"memory:{name}"]
        self._hand_over, self._incoming = trio.open_memory_channel[MemoryStream](math.inf)

    def connect(self) -> MemoryStream:
        """The client's end of a new pair whose other end waits to be accepted."""
        ours, theirs = memory_pair(self.urls[0])
        self._hand_over.send_nowait(theirs)
        return ours

    async def accept(self) -> ByteStream:
        return await self._incoming.receive()

    async def close(self) -> None:
        """Stop listening, and close what nobody accepted."""
        self._hand_over.close()
        for stream in _left_in(self._incoming):
            with trio.CancelScope(shield=True):
                await stream.aclose()
        self._incoming.close()


def _left_in(channel: trio.MemoryReceiveChannel[MemoryStream]) -> list[MemoryStream]:
    left: list[MemoryStream] = []
    while True:
        try:
            left.append(channel.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            return left


def _listeners() -> dict[str, MemoryListener]:
    try:
        return _listening.get()
    except LookupError:
        _listening.set({})
        return _listening.get()


class MemoryTransport:
    """Names are known within one `trio.run` only."""

    reconnects = True

    @asynccontextmanager
    async def connect(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[ByteStream]:
        refuse_ssl_context("memory", ssl_context)
        await trio.lowlevel.checkpoint()
        listener = _listeners().get(address)
        if listener is None:
            raise TransportError(f"nobody listens on memory:{address} in this Trio run")
        stream = listener.connect()
        try:
            yield stream
        finally:
            await stream.aclose()

    @asynccontextmanager
    async def listen(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
        refuse_ssl_context("memory", ssl_context)
        await trio.lowlevel.checkpoint()
        listeners = _listeners()
        if address in listeners:
            raise TransportError(f"memory:{address} is taken; choose another name")
        listeners[address] = listener = MemoryListener(address)
        try:
            yield listener
        finally:
            del listeners[address]
            await listener.close()


transport = MemoryTransport()
