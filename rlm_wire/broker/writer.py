"""The single writer: the only place that sends on a stream once the session is open.

Frames queue in the Connection. Two ways lead out: `flush` sends at once what the stream takes without waiting (no task
switch: this keeps a lone call short), and the writer task sends what had to wait or what `wake` asked for (many frames
queued in one round of the scheduler leave in one send). Neither tears a frame: what was not taken is kept in order, and
a caller never waits for the stream, so no caller's cancellation can interrupt it. Between two links nothing is sent:
frames stay queued, and what was on its way is the Connection's to send again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import trio

from rlm_wire.broker.link import Buffer, Link
from rlm_wire.errors import TransportError
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.limits import HEADER_SIZE
from rlm_wire.frames.schema import Goodbye

BURST: Final = 512 * 1024
"""Bytes sent before other tasks get their turn: more makes small calls beside a stream wait, less slows the stream."""

FIRST_BURST: Final = 64 * 1024
SLOW_BURST: Final = 0.005
"""What has been taken for sending cannot be overtaken by small frames any more. So bursts begin at FIRST_BURST bytes,
grow by as much with each that leaves soon, and begin anew after one that took SLOW_BURST seconds: a long link."""

ROOM: Final = 512 * 1024
"""Bytes of items that may queue before their senders wait: enough to keep the link busy, little to hold back others."""

BACKLOG: Final = 32 * 1024 * 1024
"""Bytes that may queue before handlers wait with their answers: two of the largest messages."""

FLOODED: Final = 4 * BACKLOG
"""Bytes that may queue before new calls of the peer are refused: it sends, and does not read what it gets."""

ENOUGH: Final = 32
"""Small frames that are worth a send although more are about to come: the peer then works on them meanwhile."""

_JOIN_LIMIT: Final = 64 * 1024


class Writer:
    """Owns the sending side of one link after another. `run` must be running for anything to be guaranteed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._link: Link | None = None
        self._unsent: list[Buffer] = []
        self._sleeper: trio.lowlevel.Task | None = None
        self._awake = False
        self._sending = False
        self._burst = FIRST_BURST
        self._room = trio.lowlevel.ParkingLot()
        self._error: TransportError | None = None
        self._idle = trio.lowlevel.ParkingLot()

    def flush(self) -> None:
        """Send now what the stream takes without waiting; the writer task does the rest."""
        link = self._link
        if link is None or self._sending or self._unsent:
            return  # the task is at it, or will be, and will find what is queued
        pieces = self._connection.data_to_send(self._burst)
        if not pieces:
            return
        pieces, size = _join(pieces)
        try:
            sent = link.send_nowait(pieces)
        except (TransportError, trio.ClosedResourceError) as error:
            self._error = _as_transport_error(error)
            self.wake()
            return
        if sent < size:
            self._unsent = _rest(pieces, sent)
        if sent < size or self._connection.queued:
            self.wake()
        self._make_room()

    def wake(self) -> None:
        """Have the writer task send what is queued, in its next turn."""
        if self._sleeper is not None:
            trio.lowlevel.reschedule(self._sleeper)
            self._sleeper = None
            self._awake = True

    def use(self, link: Link) -> None:
        """From now on send over `link`; `run` must follow."""
        self._link, self._unsent, self._error = link, [], None
        self._sending, self._awake = False, True
        self._burst = FIRST_BURST

    async def run(self) -> None:
        """Send until cancelled, or until the link is left. Raises TransportError if the stream breaks.

        Cancellation: the stream may hold half a frame; it must not be used again.
        """
        link = self._link
        try:
            while link is not None and self._link is link:
                if self._error is not None:
                    raise self._error
                pieces, self._unsent = self._unsent or self._connection.data_to_send(self._burst), []
                if pieces:
                    pieces, size = _join(pieces)
                    self._sending = True
                    start = trio.current_time()
                    await link.send(pieces)
                    self._sending = False
                    slow = trio.current_time() - start > SLOW_BURST
                    self._burst = FIRST_BURST if slow else min(self._burst + FIRST_BURST, BURST)
                    del pieces  # asleep, this task would keep the last large message
                    self._make_room()
                    if size >= BURST:
                        await trio.lowlevel.checkpoint()
                else:
                    self._awake = False
                    self._idle.unpark_all()
                    self._sleeper = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._stop_sleeping)
        finally:
            self._link = None
            self._awake = False
            self._idle.unpark_all()

    def leave(self, farewell: Goodbye | None) -> None:
        """Send nothing more over the link, but `farewell` if it can go out whole and at once."""
        link, self._link = self._link, None
        if link is not None and farewell is not None and not self._sending and not self._unsent:
            body = self._connection.codec.encode(farewell)
            with suppress(TransportError, trio.ClosedResourceError):
                link.send_nowait([len(body).to_bytes(HEADER_SIZE, "big") + body])

    def _stop_sleeping(self, _: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def drain(self) -> None:
        """Wait until everything that may be sent has been taken by the stream, or there is none any more."""
        self.wake()
        if self._awake:
            await self._idle.park()

    @property
    def has_room(self) -> bool:
        """True unless more than ROOM bytes wait."""
        return self._connection.queued <= ROOM

    async def wait_room(self) -> None:
        """Wait for room, or for the end."""
        await self._room.park()

    def _make_room(self) -> None:
        if self._room and self.has_room:
            self._room.unpark_all()

    def close(self) -> None:
        """Nothing will be sent any more: let those who wait for room find out."""
        self._room.unpark_all()
        self._idle.unpark_all()


def _as_transport_error(error: TransportError | trio.ClosedResourceError) -> TransportError:
    return error if isinstance(error, TransportError) else TransportError("the stream is closed")


def _join(pieces: list[Buffer]) -> tuple[list[Buffer], int]:
    """Few small pieces are cheaper to copy together than to pass one by one. Returns the total size as well."""
    size = sum(map(len, pieces))
    if len(pieces) > 1 and size <= _JOIN_LIMIT:
        return [b"".join(pieces)], size
    return pieces, size


def _rest(pieces: list[Buffer], sent: int) -> list[Buffer]:
    """What is left of `pieces` after `sent` bytes."""
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []
