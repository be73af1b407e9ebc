"""Connections as long and as fat as asked, in one process: for counting round trips on Trio's virtual clock.

Each direction has a rate, and delays what it carries by half a round trip; a send buffer in front of it fills up, as a
socket's does. Nothing is lost and nothing else takes time, so that on a `MockClock` durations are exact.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import trio

from rlm_wire.errors import TransportError
from rlm_wire.testing.arrivals import ArrivalListener
from rlm_wire.transports import Buffer, ByteStream, Listener

SEND_BUFFER: Final = 64 * 1024
"""Bytes that a sender may be ahead of the link: about what a tuned socket holds back."""

PIECE: Final = 16 * 1024
"""Bytes that arrive at once."""


class Distance(msgspec.Struct, frozen=True):
    """How far away a peer is: `round_trip` in seconds, `rate` in bytes a second, each way."""

    round_trip: float
    rate: float = 12_500_000


class _Direction:
    """One way. Bytes are on the way from when they are put until their time of arrival."""

    def __init__(self, distance: Distance) -> None:
        self._distance = distance
        self._carried: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0
        self._ends_at: float | None = None
        self._put = trio.lowlevel.ParkingLot()
        self.refuses = False
        """The receiver has closed."""

    def put(self, data: Buffer) -> int:
        """Take what the send buffer has room for; its size."""
        now = trio.current_time()
        self._free_at = max(self._free_at, now)
        room = SEND_BUFFER - round((self._free_at - now) * self._distance.rate)
        taken = bytes(data[: max(room, 0)])
        for start in range(0, len(taken), PIECE):
            piece = taken[start : start + PIECE]
            self._free_at += len(piece) / self._distance.rate
            self._carried.append((self._free_at + self._distance.round_trip / 2, piece))
        if taken:
            self._put.unpark_all()
        return len(taken)

    async def wait_room(self) -> None:
        """Wait until a piece more has left."""
        await trio.sleep(PIECE / self._distance.rate)

    def end(self) -> None:
        """Nothing more will be put."""
        if self._ends_at is None:
            self._ends_at = max(self._free_at, trio.current_time()) + self._distance.round_trip / 2
            self._put.unpark_all()

    async def take(self, buffer: memoryview) -> int:
        """Wait for bytes to arrive; 0 once all have and there will be no more. Cancellation: nothing is lost."""
        while not self._carried and self._ends_at is None:
            await self._put.park()
        await trio.sleep_until(self._carried[0][0] if self._carried else self._ends_at or 0.0)
        size = 0
        while self._carried and size < len(buffer) and self._carried[0][0] <= trio.current_time():
            arrives, piece = self._carried.popleft()
            part = piece[: len(buffer) - size]
            buffer[size : size + len(part)] = part
            size += len(part)
            if len(part) < len(piece):
                self._carried.appendleft((arrives, piece[len(part) :]))
        return size


class DistantStream(ByteStream):
    """One end of a connection over a distance."""

    def __init__(self, incoming: _Direction, outgoing: _Direction, description: str, *, private: bool) -> None:
        self.description = description
        self.private = private
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False

    async def receive_into(self, buffer: memoryview) -> int:
        self._check_open()
        size = await self._incoming.take(buffer)
        self._check_open()
        return size

    async def send(self, data: Sequence[Buffer]) -> None:
        for piece in data:
            left = memoryview(piece)
            while left:
                left = left[self.send_nowait([left]) :]
                if left:
                    await self._outgoing.wait_room()

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        self._check_open()
        if self._outgoing.refuses:
            raise TransportError(f"{self.description}: the other side has closed")
        taken = 0
        for piece in data:
            more = self._outgoing.put(piece)
            taken += more
            if more < len(piece):
                break
        return taken

    async def aclose(self) -> None:
        self._closed = True
        self._incoming.refuses = True
        self._incoming.end()
        self._outgoing.end()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(f"{self.description} is closed")


class DistantTransport:
    """One address, so far away. Connecting takes a round trip, as TCP does. `private` as of a stream."""

    reconnects = True

    def __init__(self, distance: Distance, *, private: bool = False) -> None:
        self._distance = distance
        self._private = private
        self._listener: ArrivalListener | None = None

    @asynccontextmanager
    async def connect(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[ByteStream]:
        await trio.sleep(self._distance.round_trip / 2)
        if self._listener is None:
            raise TransportError("nobody listens there")
        there, back = _Direction(self._distance), _Direction(self._distance)
        ours = DistantStream(back, there, "distant:", private=self._private)
        self._listener.hand_over(DistantStream(there, back, "distant:", private=self._private))
        await trio.sleep(self._distance.round_trip / 2)
        try:
            yield ours
        finally:
            await ours.aclose()

    @asynccontextmanager
    async def listen(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
        await trio.lowlevel.checkpoint()
        self._listener = ArrivalListener("distant:")
        try:
            yield self._listener
        finally:
            self._listener = None
