"""Byte streams with faults, around a sound one: for testing whatever reads and writes byte streams."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from rlm_wire.errors import TransportError
from rlm_wire.transports import Buffer, ByteStream

__all__ = ["CutStream", "StalledStream", "TricklingStream"]


class WrappedStream(ByteStream):
    """Passes everything on to `below`, which it owns. Subclasses change what they are about."""

    def __init__(self, below: ByteStream) -> None:
        self.below = below
        self.description = below.description
        self.private = below.private
        self.channel_binding = below.channel_binding

    async def handshake(self) -> None:
        await self.below.handshake()
        self.channel_binding = self.below.channel_binding

    async def receive_into(self, buffer: memoryview) -> int:
        return await self.below.receive_into(buffer)

    async def send(self, data: Sequence[Buffer]) -> None:
        await self.below.send(data)

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        return self.below.send_nowait(data)

    async def aclose(self) -> None:
        await self.below.aclose()

    def diagnose(self) -> str:
        return self.below.diagnose()


class TricklingStream(WrappedStream):
    """Moves at most `size` bytes at a time, in both directions, and takes nothing without waiting."""

    def __init__(self, below: ByteStream, size: int = 1) -> None:
        super().__init__(below)
        self._size = size

    async def receive_into(self, buffer: memoryview) -> int:
        return await self.below.receive_into(buffer[: self._size])

    async def send(self, data: Sequence[Buffer]) -> None:
        for piece in data:
            view = memoryview(piece)
            for start in range(0, len(view), self._size):
                await self.below.send([view[start : start + self._size]])

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        return 0


class CutStream(WrappedStream):
    """Breaks for good once `sent` bytes were sent or `received` bytes were received, whichever comes first.

    Bytes up to the cut pass, the rest is lost, and everything afterwards raises `TransportError`: a cable pulled in
    the middle of a frame. None means no limit. `cut()` pulls it at once.
    """

    def __init__(self, below: ByteStream, *, sent: int | None = None, received: int | None = None) -> None:
        super().__init__(below)
        self._may_send = sent
        self._may_receive = received
        self._is_cut = False
        self._waiting: set[trio.CancelScope] = set()

    def cut(self) -> None:
        """Break the stream now, also for a task that is waiting on it."""
        self._is_cut = True
        for scope in self._waiting:
            scope.cancel()

    async def receive_into(self, buffer: memoryview) -> int:
        if self._may_receive == 0:
            self.cut()
        size = 0
        with self._until_cut():
            size = await self.below.receive_into(buffer[: self._may_receive])
        self._check_whole()
        if self._may_receive is not None:
            self._may_receive -= size
        return size

    async def send(self, data: Sequence[Buffer]) -> None:
        whole = b"".join(data)
        passing = whole[: self._may_send]
        if passing:
            with self._until_cut():
                await self.below.send([passing])
        self._count_sent(len(passing))
        if len(passing) < len(whole):
            self.cut()
        self._check_whole()

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        self._check_whole()
        passing = b"".join(data)[: self._may_send]
        taken = self.below.send_nowait([passing]) if passing else 0
        self._count_sent(taken)
        return taken

    def _count_sent(self, size: int) -> None:
        if self._may_send is not None:
            self._may_send -= size

    def _until_cut(self) -> _UntilCut:
        self._check_whole()
        return _UntilCut(self._waiting)

    def _check_whole(self) -> None:
        if self._is_cut:
            raise TransportError(f"{self.description}: the connection was cut")


class _UntilCut:
    """A cancel scope that is in `waiting` while it is entered."""

    def __init__(self, waiting: set[trio.CancelScope]) -> None:
        self._waiting = waiting
        self._scope = trio.CancelScope()

    def __enter__(self) -> None:
        self._waiting.add(self._scope)
        self._scope.__enter__()

    def __exit__(self, *error: object) -> bool | None:
        self._waiting.discard(self._scope)
        return self._scope.__exit__(*error)  # type: ignore[arg-type]


class StalledStream(WrappedStream):
    """While `stall()`ed nothing moves and nothing breaks, as behind a router that drops all; `resume()` ends that."""

    def __init__(self, below: ByteStream) -> None:
        super().__init__(below)
        self._flows = trio.Event()
        self._flows.set()

    def stall(self) -> None:
        """Hold back what is sent and received from now on. A receive already waiting below may bring one more piece."""
        if self._flows.is_set():
            self._flows = trio.Event()

    def resume(self) -> None:
        """Let everything pass again; nothing was lost."""
        self._flows.set()

    async def receive_into(self, buffer: memoryview) -> int:
        await self._flows.wait()
        return await self.below.receive_into(buffer)

    async def send(self, data: Sequence[Buffer]) -> None:
        await self._flows.wait()
        await self.below.send(data)

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        return self.below.send_nowait(data) if self._flows.is_set() else 0
