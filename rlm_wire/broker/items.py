"""Items of one call, in either direction: a queue whose reader returns credit, and a gate for the sender. Spec §6.3."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from rlm_wire.broker.writer import Writer
from rlm_wire.errors import WireError
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.events import ItemReceived

T = TypeVar("T")


IN_A_ROW: Final = 8
"""Items that one task may send or take before others get their turn: a turn of the scheduler costs as much as an item,
and a send of several costs less than several sends."""


class _Pace:
    """Checkpoints, of which only every IN_A_ROWth lets other tasks run; each can be cancelled."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = IN_A_ROW

    async def checkpoint(self) -> None:
        self._left -= 1
        if self._left:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._left = IN_A_ROW
            await trio.lowlevel.checkpoint()


class ItemQueue(Generic[T]):
    """Items in order of arrival; bounded by the peer's window, so adding never waits. One reader at a time."""

    __slots__ = ("_consumed", "_error", "_items", "_open", "_pace", "_reader")

    def __init__(self, consumed: Callable[[ItemReceived], None]) -> None:
        self._consumed = consumed
        self._items: deque[tuple[T, ItemReceived]] = deque()
        self._open = True
        self._pace = _Pace()
        self._error: WireError | None = None
        self._reader: trio.lowlevel.Task | None = None

    def add(self, value: T, item: ItemReceived) -> None:
        self._items.append((value, item))
        self._wake()

    def close(self, error: WireError | None = None) -> None:
        """No more will come; with `error`, the reader is told so after the last item."""
        if self._open:
            self._open = False
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    async def take(self) -> T:
        """The next item. StopAsyncIteration after the last; the error that ended the call, if one did.

        Cancellation: no item is lost.
        """
        if not self._items and self._open:
            if self._reader is not None:
                raise trio.BusyResourceError("another task is receiving this call's items")
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._leave)
        else:
            await self._pace.checkpoint()
        if not self._items:
            if self._error is not None:
                raise self._error
            raise StopAsyncIteration
        value, item = self._items.popleft()
        self._consumed(item)
        return value

    def _leave(self, _: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED


class ItemGate:
    """Lets the sender of one call's items through while the peer's window and our own queue have room."""

    __slots__ = ("_call_id", "_connection", "_credit", "_pace", "_writer", "closed")

    def __init__(self, call_id: int, connection: Connection, writer: Writer) -> None:
        self.closed = False
        self._pace = _Pace()
        self._call_id = call_id
        self._connection = connection
        self._writer = writer
        self._credit = trio.lowlevel.ParkingLot()

    async def wait(self) -> bool:
        """Wait for room. False if the call has ended."""
        await self._pace.checkpoint()
        while not self.closed:
            if not self._connection.may_send_item(self._call_id):
                await self._credit.park()
            elif not self._writer.has_room:
                await self._writer.wait_room()
            else:
                return True
        return False

    def open(self) -> None:
        """The peer granted credit."""
        self._credit.unpark_all()

    def close(self) -> None:
        """The call has ended."""
        self.closed = True
        self._credit.unpark_all()
