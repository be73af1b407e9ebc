"""A network in memory whose connections are cut, held up and chopped: a transport for whole peers on a virtual clock.

Faults are applied at the client's end. A cut lets through exactly as many bytes as were planned, in either direction,
and loses the rest; the server's end hears of it at once, or not at all (a half-open connection).
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NoReturn

import msgspec
import trio

from rlm_wire.errors import TransportError
from rlm_wire.testing.arrivals import ArrivalListener
from rlm_wire.testing.faults import WrappedStream
from rlm_wire.transports import Buffer, ByteStream, Listener
from rlm_wire.transports.memory import memory_pair

UNREACHABLE: Final = "the simulated network is down"


class Fate(msgspec.Struct, frozen=True):
    """What will happen to one connection. Sizes in bytes, times in virtual seconds; None: it does not happen."""

    refused: bool = False
    cut_sent: int | None = None
    cut_received: int | None = None
    half_open: bool = False
    """The server's end is not told of the cut."""
    stall_sent: int | None = None
    """Nothing moves for `stall` seconds, once so many bytes were sent."""
    stall: float = 0.0
    delay: float = 0.0
    """Before each piece that is sent or received."""
    lag: float = 0.0
    """The server's end hears of what was sent so much later: after a cut as well, when the next link may be there."""
    piece: int = 1 << 20
    """Largest piece that passes at once, in either direction."""
    doubled_sent: int | None = None
    """Once so many bytes have passed, the last `doubled` of them come again, as no sound transport has it."""
    doubled_received: int | None = None
    doubled: int = 0


Plan = Callable[[], Fate]


class Network:
    """One address, reached through connections whose fates are planned one by one. `connections` were made so far."""

    reconnects = True

    def __init__(self, plan: Plan, *, private: bool = True) -> None:
        self.connections: list[FatedStream] = []
        self.held_open: list[ByteStream] = []
        """Ends of half-open connections: whoever simulates closes them in the end."""
        self._plan = plan
        self._private = private
        self._listener: ArrivalListener | None = None

    @asynccontextmanager
    async def connect(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[ByteStream]:
        await trio.lowlevel.checkpoint()
        fate = self._plan()
        if fate.refused or self._listener is None:
            raise TransportError(UNREACHABLE)
        ours, theirs = memory_pair(f"simulated:{address}")
        ours.private = theirs.private = self._private
        stream = FatedStream(ours, fate, self)
        self.connections.append(stream)
        self._listener.hand_over(_LaggingStream(theirs, fate.lag) if fate.lag else theirs)
        try:
            yield stream
        finally:
            await stream.aclose()

    @asynccontextmanager
    async def listen(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
        await trio.lowlevel.checkpoint()
        self._listener = ArrivalListener(f"simulated:{address}")
        try:
            yield self._listener
        finally:
            self._listener = None

    async def close(self) -> None:
        """End what was left half open."""
        for stream in self.held_open:
            await stream.aclose()


class _LaggingStream(WrappedStream):
    """Receives everything `lag` seconds after it has arrived. Cancelled meanwhile, it has lost it."""

    def __init__(self, below: ByteStream, lag: float) -> None:
        super().__init__(below)
        self._lag = lag

    async def receive_into(self, buffer: memoryview) -> int:
        size = await self.below.receive_into(buffer)
        await trio.sleep(self._lag)
        return size


class FatedStream(WrappedStream):
    """The client's end of a connection with a fate. `sent` and `received` count the bytes that passed."""

    def __init__(self, below: ByteStream, fate: Fate, network: Network) -> None:
        super().__init__(below)
        self.sent = self.received = 0
        self._fate = fate
        self._network = network
        self.is_cut = False
        self._waiting: set[trio.CancelScope] = set()
        self._stalled = False
        self._again = b""

    async def receive_into(self, buffer: memoryview) -> int:
        fate = self._fate
        if self._again:
            again, self._again = self._again[: len(buffer)], self._again[len(buffer) :]
            buffer[: len(again)] = again
            await trio.lowlevel.checkpoint()
            return len(again)
        room = min([fate.piece, *_until(self.received, fate.cut_received, fate.doubled_received)])
        if room <= 0 or self.is_cut:
            await self._cut()
        size: int | None = None
        with self._until_cut():
            await self._wait()
            size = await self.below.receive_into(buffer[:room])
            self.received += size
        if size is None:
            await self._cut()
        if self.received == fate.doubled_received:
            self._again = bytes(buffer[:size][-fate.doubled :])
        return size

    async def send(self, data: Sequence[Buffer]) -> None:
        fate = self._fate
        left = memoryview(b"".join(data))
        while left:
            room = min([fate.piece, *_until(self.sent, fate.cut_sent, fate.doubled_sent)])
            if room <= 0 or self.is_cut:
                await self._cut()
            with self._until_cut():
                await self._wait()
                await self.below.send([left[:room]])
                self.sent += len(left[:room])
                if self.sent == fate.doubled_sent:
                    await self.below.send([left[:room][-fate.doubled :]])
                left = left[room:]

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        return 0  # everything takes its way through `send`, where fates are fulfilled

    async def aclose(self) -> None:
        if self.is_cut and self._fate.half_open:
            self._network.held_open.append(self.below)
            await trio.lowlevel.checkpoint()
        else:
            await self.below.aclose()

    async def _wait(self) -> None:
        fate = self._fate
        if fate.stall_sent is not None and self.sent >= fate.stall_sent and not self._stalled:
            self._stalled = True
            await trio.sleep(fate.stall)
        if fate.delay:
            await trio.sleep(fate.delay)

    async def cut(self) -> None:
        """Break it now. Cancellation: it is broken all the same."""
        self.is_cut = True
        for scope in self._waiting:
            scope.cancel()
        if not self._fate.half_open:
            await self.below.aclose()

    async def _cut(self) -> NoReturn:
        await self.cut()
        raise TransportError(f"{self.description}: the connection was cut")

    @contextmanager
    def _until_cut(self) -> Iterator[None]:
        scope = trio.CancelScope()
        self._waiting.add(scope)
        try:
            with scope:
                yield
        except trio.ClosedResourceError:
            if not self.is_cut:
                raise
        finally:
            self._waiting.discard(scope)


def _until(passed: int, cut: int | None, doubled: int | None) -> list[int]:
    """Bytes that may pass before something happens."""
    ahead = [] if doubled is None or doubled <= passed else [doubled - passed]
    return ahead if cut is None else [*ahead, cut - passed]
