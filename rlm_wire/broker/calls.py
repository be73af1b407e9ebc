"""Calls made from this side: waiting for their results, receiving and sending their items, cancelling them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import trio

from rlm_wire.broker.items import ItemGate, ItemQueue
from rlm_wire.errors import CODES, CallError, SessionLost, WireError
from rlm_wire.frames.events import ItemReceived
from rlm_wire.frames.framing import readable
from rlm_wire.frames.schema import Fail, Reply
from rlm_wire.methods.base import RequestTypes

if TYPE_CHECKING:
    from rlm_wire.broker.peer import Peer

Result = TypeVar("Result")
Received = TypeVar("Received")
Sent = TypeVar("Sent")

STOP_GRACE: Final = 15.0
"""Seconds to wait for the peer to say that cancelled work has stopped: an interrupt, a kill and a restart fit in."""

DEADLINE_GRACE: Final = 5.0
"""Seconds beyond its own deadline that a call waits for the peer's word on it (a partial result, say)."""


class Call(Generic[Result, Received, Sent]):
    """A call in progress, from `peer.open(request)`: items both ways, then the result. For one task at a time."""

    __slots__ = (
        "_cancelled",
        "_error",
        "_gate",
        "_items",
        "_peer",
        "_types",
        "_value",
        "_waiter",
        "ended",
        "id",
        "method",
    )

    def __init__(self, peer: Peer, call_id: int, method: str, types: RequestTypes) -> None:
        self.id = call_id
        self.method = method
        self._peer = peer
        self._types = types
        self.ended = False
        self._cancelled = False
        self._value: Result | None = None
        self._error: WireError | None = None
        self._waiter: trio.lowlevel.Task | None = None
        self._items: ItemQueue[Received] | None = None
        self._gate: ItemGate | None = None

    def __repr__(self) -> str:
        return f"<Call {self.id} {self.method} {'ended' if self.ended else 'open'}>"

    # -------------------------------------------------------------- for callers

    async def result(self) -> Result:
        """Wait for the result. Raises CallError if the call failed, SessionLost if the peer is gone.

        After `cancel()` it is what the work had until then, if its handler gives partial results, else CallError
        `cancelled`. Cancellation: only the waiting ends; the call goes on until its `async with` is left.
        """
        if self.ended:
            await trio.lowlevel.checkpoint()
        elif self._waiter is not None:
            raise trio.BusyResourceError("another task is waiting for this result")
        else:
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return cast("Result", self._value)

    def cancel(self, reason: str = "") -> None:
        """Ask the peer to stop the work; harmless if the call has ended. `result()` then tells how it ended."""
        self._cancelled = True
        if not self.ended:
            self._peer.cancel_call(self, reason)

    async def send(self, item: Sent) -> None:
        """Send an item; waits while the peer's window is used up. CallError if it cannot be sent.

        Raises the call's error if the call ended in failure, and `trio.BrokenResourceError` if it ended otherwise.
        Cancellation: the item was not sent.
        """
        if self._gate is None:
            self._gate = self._peer.item_gate(self.id)
        if await self._gate.wait() and not self.ended and not self._cancelled:
            self._peer.send_item(self.id, item)
        elif self._error is not None:
            raise self._error.with_traceback(None)
        else:
            raise trio.BrokenResourceError(f"{self.method} has ended or was cancelled, and takes no more items")

    async def close_sending(self) -> None:
        """Tell the peer that no more items come. Harmless if the call has ended or was cancelled."""
        await trio.lowlevel.checkpoint()
        if not self.ended and not self._cancelled:
            self._peer.close_sending(self.id)

    def __aiter__(self) -> AsyncIterator[Received]:
        return self

    async def __anext__(self) -> Received:
        return await self._queue().take()

    # ------------------------------------------------------------- for the peer

    def receive_item(self, item: ItemReceived) -> None:
        try:
            value = self._peer.decode(item.value, self._types.from_handler, f"item of {self.method}")
        except CallError as error:
            self.cancel("its items cannot be decoded")
            self._end(error=error)
            return
        self._queue().add(value, item)

    def receive_close(self) -> None:
        self._queue().close()

    def receive_credit(self) -> None:
        if self._gate is not None:
            self._gate.open()

    def receive_reply(self, reply: Reply) -> None:
        try:
            value = self._peer.decode(reply.result, self._types.result, f"result of {self.method}")
        except CallError as error:
            self._end(error=CallError("internal", f"the peer's answer does not fit: {error.message}"))
        else:
            self._end(value)

    def receive_fail(self, fail: Fail) -> None:
        try:
            data = self._peer.decode(fail.data, Any, "data") if bytes(fail.data) else None
        except CallError:
            data = None
        code: Any = fail.code if fail.code in CODES else "internal"
        self._end(error=CallError(code, readable(fail.message), data=data, retryable=fail.retryable))

    def lose(self, error: SessionLost) -> None:
        self._end(error=error)

    def give_up(self, why: str) -> None:
        """Its deadline and its grace have passed: cancel it, and wait no longer for the peer's word."""
        self.cancel(why)
        self._end(error=CallError("deadline_exceeded", why))

    def end_unsent(self) -> None:
        self._end(error=CallError("cancelled", f"{self.method} was cancelled before it was sent"))

    def _end(self, value: Result | None = None, error: WireError | None = None) -> None:
        if self.ended:
            return
        self.ended = True
        self._value, self._error = value, error
        if self._waiter is not None:
            trio.lowlevel.reschedule(self._waiter)
            self._waiter = None
        if self._items is not None:
            self._items.close(error)
        if self._gate is not None:
            self._gate.close()

    def _queue(self) -> ItemQueue[Received]:
        if self._items is None:
            self._items = ItemQueue(self._consumed)
            if self.ended:
                self._items.close(self._error)
        return self._items

    def _consumed(self, item: ItemReceived) -> None:
        self._peer.consumed(self.id, item)

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def wait_stopped(self, reason: str) -> None:
        """Cancel the call if it is open, and wait, shielded and at most STOP_GRACE, until the peer has stopped it."""
        if self.ended:
            return
        self.cancel(reason)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_GRACE):
            while not self.ended and self._waiter is None:
                self._waiter = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
