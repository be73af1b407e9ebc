"""A byte stream over any `trio.abc.Stream`, for third-party transports."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio

from rlm_wire.errors import TransportError
from rlm_wire.transports.base import Buffer, ByteStream
from rlm_wire.transports.exclusive import Exclusive
from rlm_wire.transports.sockets import LINGER, LINGER_BYTES


class TrioByteStream(ByteStream):
    """Owns `stream`. `private` is the adapter's author's word that nobody else can be at the other end."""

    def __init__(self, stream: trio.abc.Stream, description: str, *, private: bool = False) -> None:
        self._stream = stream
        self._receiver = Exclusive("receiving from")
        self._sender = Exclusive("sending to")
        self._torn = False
        self.description = description
        self.private = private

    async def receive_into(self, buffer: memoryview) -> int:
        with self._receiver:
            try:
                data = await self._stream.receive_some(len(buffer))
            except trio.BrokenResourceError as error:
                raise TransportError(f"{self.description}: connection lost while receiving") from error
            buffer[: len(data)] = data
            return len(data)

    async def send(self, data: Sequence[Buffer]) -> None:
        with self._sender:
            if self._torn:
                raise TransportError(
                    f"{self.description}: an earlier send was cancelled half-way; open a new connection"
                )
            try:
                await self._stream.send_all(data[0] if len(data) == 1 else b"".join(data))
            except trio.BrokenResourceError as error:
                raise TransportError(f"{self.description}: connection lost while sending") from error
            except trio.Cancelled:
                self._torn = True
                raise

    async def aclose(self) -> None:
        try:
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                with trio.move_on_after(LINGER), self._receiver, self._sender:
                    await _end_politely(self._stream)
        except trio.BusyResourceError:
            pass  # a task is still using the stream: it is woken at once, and what it was sending is cut short
        finally:
            await self._stream.aclose()


async def _end_politely(stream: trio.abc.HalfCloseableStream) -> None:
    """As `sockets.SocketStream` does, and for the same reason."""
    size = 0
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.send_eof()
        while size < LINGER_BYTES and (discarded := await stream.receive_some(65536)):
            size += len(discarded)
