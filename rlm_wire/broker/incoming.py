"""Calls made by the peer: running their handlers, and what a handler sees of its call.

The one place where exceptions become wire errors. A CallError goes to the caller as it is; anything else is a bug
here: it is logged, and the caller is told `internal` and no more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from rlm_wire.broker.items import ItemGate, ItemQueue
from rlm_wire.broker.scopes import current_scope
from rlm_wire.broker.services import Registration
from rlm_wire.errors import CallError, Code, SessionLost
from rlm_wire.frames.events import ItemReceived
from rlm_wire.frames.schema import NO_ITEMS
from rlm_wire.frames.schema import Call as CallFrame

if TYPE_CHECKING:
    from rlm_wire.broker.peer import Peer

logger = logging.getLogger(__name__)

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class IncomingCall(Generic[Sent, Received]):
    """What a handler may know of the call it answers, and its items. Valid while the handler runs."""

    def __init__(self, peer: Peer, frame: CallFrame, registration: Registration) -> None:
        self.peer = peer
        self.id = frame.id
        self.scope = frame.scope
        self.cancel_reason: str | None = None
        """None until the caller cancels, or its deadline passes; then why."""
        self.wants_items = not frame.flags & NO_ITEMS
        """False if the caller takes no items: `send` then does nothing."""
        self._registration = registration
        self._deadline = math.inf if frame.deadline is None else trio.current_time() + frame.deadline
        self._whole = self._work = trio.CancelScope()
        self._items: ItemQueue[Received] | None = None
        self._gate: ItemGate | None = None
        if not registration.stoppable:
            self._work.deadline = self._deadline

    @property
    def state(self) -> Any:
        """What the service's lifespan yielded for this session."""
        return self.peer.lifespan_state

    @contextmanager
    def stoppable(self) -> Iterator[trio.CancelScope]:
        """A scope that the caller's Cancel and deadline cancel, after which the handler goes on, to return what it has.

        Only for handlers registered with `stoppable=True`. `cancelled_caught` on the scope tells that it happened.
        A call that was cancelled before finds its block cancelled from the start.
        """
        if not self._registration.stoppable:
            raise RuntimeError("register this handler with stoppable=True")
        outer, scope = self._work, trio.CancelScope(deadline=self._deadline)
        self._work = scope
        if self.cancel_reason is not None:
            scope.cancel(self.cancel_reason)
        try:
            with scope:
                yield scope
        finally:
            self._work = outer
            if scope.cancelled_caught and self.cancel_reason is None:
                self.cancel_reason = "deadline"

    async def send(self, item: Sent) -> None:
        """Send an item to the caller; waits while the caller's window is used up, that is while it does not consume.

        CallError if the item cannot be sent. Cancellation: the item was not sent.
        """
        if not self.wants_items:
            await trio.lowlevel.checkpoint()
            return
        if self._gate is None:
            self._gate = self.peer.item_gate(self.id)
        await self._gate.wait()
        self.peer.send_item(self.id, item)

    def __aiter__(self) -> AsyncIterator[Received]:
        return self

    async def __anext__(self) -> Received:
        return await self._queue().take()

    # ------------------------------------------------------------- for the peer

    def receive_item(self, item: ItemReceived) -> None:
        what = f"item of {self._registration.method}"
        try:
            value = self.peer.decode(item.value, self._registration.types.from_caller, what)
        except CallError as error:
            self._queue().close(error)
        else:
            self._queue().add(value, item)

    def receive_close(self) -> None:
        self._queue().close()

    def receive_credit(self) -> None:
        if self._gate is not None:
            self._gate.open()

    def receive_cancel(self, reason: str) -> None:
        if self.cancel_reason is None:
            self.cancel_reason = reason or "cancelled by the caller"
            if not self._registration.stoppable or self._work is not self._whole:
                self._work.cancel(self.cancel_reason)
            self._queue().close()  # then, or whoever waits for an item would hear of an orderly end instead

    async def run(self, request: Any) -> None:
        """Run the handler and answer. Never raises but for cancellation from outside: the session is ending."""
        if self.scope is not None:
            current_scope.set(self.scope)
        function = self._registration.function
        with self._whole:
            try:
                result = await (function(request, self) if self._registration.takes_call else function(request))
                await self.peer.wait_room()  # results for a peer that reads slowly must not pile up without bound
            except Exception as error:  # noqa: BLE001 - the boundary: whatever a handler raises becomes an answer
                self._answer_error(error)
            else:
                answer(self.peer, self.id, self._registration, result)
        if self._whole.cancelled_caught:
            code: Code = "deadline_exceeded" if self.cancel_reason is None else "cancelled"
            self.peer.fail(self.id, CallError(code, f"{self._registration.method} was stopped"))

    def _answer_error(self, error: Exception) -> None:
        self.peer.fail(self.id, to_call_error(error, self._registration.method))

    def _queue(self) -> ItemQueue[Received]:
        if self._items is None:
            self._items = ItemQueue(self._consumed)
        return self._items

    def _consumed(self, item: ItemReceived) -> None:
        self.peer.consumed(self.id, item)


def answer(peer: Peer, call_id: int, registration: Registration, result: Any) -> None:
    """Reply with `result`, or fail the call if it cannot be sent."""
    try:
        peer.reply(call_id, result)
    except CallError as error:
        code = error.code if error.code == "resource_exhausted" else "internal"
        message = f"the result of {registration.method} cannot be sent: {error.message}"
        peer.fail(call_id, CallError(code, message, data=error.data))


def to_call_error(error: Exception, method: str) -> CallError:
    """What the caller is told of an exception that a handler raised."""
    if isinstance(error, CallError):
        return error
    if isinstance(error, ExceptionGroup):  # a handler that uses a nursery raises its one CallError in groups
        leaf: BaseException = error
        while isinstance(leaf, BaseExceptionGroup) and len(leaf.exceptions) == 1:
            leaf = leaf.exceptions[0]
        if isinstance(leaf, CallError):
            return leaf
    if isinstance(error, SessionLost):
        return CallError("unavailable", f"{method} lost a session that it needs: {error}", retryable=True)
    logger.error("the handler of %s failed", method, exc_info=error)
    return CallError("internal", f"{method} failed; the other side's log says why")
