"""A byte stream over file descriptors, sockets and pipes alike, read and written straight under Trio's readiness.

`os.readv` and `os.writev` serve both kinds. Nothing here opens anything; the modules beside this one do.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from typing import Final

import trio

from rlm_wire.errors import TransportError
from rlm_wire.transports.base import Buffer, ByteStream
from rlm_wire.transports.exclusive import Exclusive

VECTOR_LIMIT: Final = os.sysconf("SC_IOV_MAX")
"""The kernel refuses more pieces in one call."""

FIRST_FREE_DESCRIPTOR: Final = 3
"""A program started without 0, 1 or 2 gets those numbers for the next thing it opens, and a stray print lands in it."""


def above_standard(descriptor: int) -> int:
    """Take over `descriptor`; return it, or a close-on-exec duplicate if it has the number of a standard stream."""
    if descriptor >= FIRST_FREE_DESCRIPTOR:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_DESCRIPTOR)
    finally:
        os.close(descriptor)


def occupy_standard_descriptors() -> None:
    """Put /dev/null wherever descriptor 0, 1 or 2 is closed. For a program's first line, before anything is opened."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < FIRST_FREE_DESCRIPTOR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def without_first(data: Sequence[Buffer], size: int) -> Sequence[Buffer]:
    """`data` without its first `size` bytes, copying none; an empty sequence if no byte is left."""
    for index, piece in enumerate(data):
        if size < len(piece):
            if size:
                return [memoryview(piece)[size:], *data[index + 1 :]]
            return data[index:] if index else data
        size -= len(piece)
    return ()


class DescriptorStream(ByteStream):
    """Owns `receiving` and `sending` (the same number for a socket), makes them non-blocking, and closes them."""

    def __init__(self, receiving: int, sending: int, description: str, *, private: bool) -> None:
        os.set_blocking(receiving, False)
        os.set_blocking(sending, False)
        self._receiving = receiving
        self._sending = sending
        self._receiver = Exclusive("receiving from")
        self._sender = Exclusive("sending to")
        self._drained = True
        self._torn = False
        self.closed = False
        self.description = description
        self.private = private

    async def receive_into(self, buffer: memoryview) -> int:
        with self._receiver:
            # A read that filled less than its buffer emptied the kernel's: asking again would only cost a failed call.
            if not self._drained:
                await trio.lowlevel.checkpoint()
            while True:
                if self.closed:
                    raise trio.ClosedResourceError(f"{self.description} is closed")
                try:
                    if self._drained:
                        await trio.lowlevel.wait_readable(self._receiving)
                    size = os.readv(self._receiving, [buffer])
                except BlockingIOError:
                    self._drained = True
                except OSError as error:
                    raise self._broken("receiving", error) from error
                else:
                    self._drained = size < len(buffer)
                    return size

    async def send(self, data: Sequence[Buffer]) -> None:
        with self._sender:
            await trio.lowlevel.checkpoint_if_cancelled()
            rest = without_first(data, self._take(data))
            if not rest:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return
            try:
                while rest:
                    await trio.lowlevel.wait_writable(self._sending)
                    rest = without_first(rest, self._take(rest))
            except trio.Cancelled:
                self._torn = True
                raise

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        with self._sender:
            taken = 0
            while rest := without_first(data, taken):
                more = self._take(rest)
                if not more:
                    break
                taken += more
            return taken

    def _take(self, data: Sequence[Buffer]) -> int:
        """One write of what fits; its size, 0 if the kernel takes nothing at the moment."""
        if self.closed or self._sending < 0:
            raise trio.ClosedResourceError(f"{self.description} is closed")
        if self._torn:
            raise TransportError(f"{self.description}: an earlier send was cancelled half-way; open a new connection")
        try:
            return os.writev(self._sending, data if len(data) <= VECTOR_LIMIT else data[:VECTOR_LIMIT])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken("sending", error) from error

    def _broken(self, doing: str, error: OSError) -> TransportError:
        return TransportError(f"{self.description}: connection lost while {doing}: {error.strerror or error}")

    def close_sending(self) -> None:
        """Close a sending descriptor of its own, so that the peer sees the end. Not for sockets; idempotent."""
        if self._sending >= 0:
            _close(self._sending)
            self._sending = -1

    def close(self) -> None:
        """Close at once; tasks that wait on the stream get `trio.ClosedResourceError`. Idempotent."""
        self.closed = True
        descriptors = {self._receiving, self._sending} - {-1}
        self._receiving = self._sending = -1
        for descriptor in descriptors:
            _close(descriptor)

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


def _close(descriptor: int) -> None:
    trio.lowlevel.notify_closing(descriptor)
    os.close(descriptor)
