"""One session, seen from this side: calls out, calls in, and what becomes of them. It outlives its links (`line`).

Frames arrive in batches, each handed on as a whole before anything is sent in answer.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, Never, TypeVar

import msgspec
import trio

from rlm_wire.broker.calls import DEADLINE_GRACE, Call
from rlm_wire.broker.handlers import Handlers
from rlm_wire.broker.info import Loss, LostCall, PeerInfo
from rlm_wire.broker.items import ItemGate
from rlm_wire.broker.line import Line
from rlm_wire.broker.link import Link
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.scopes import current_scope
from rlm_wire.broker.services import Service
from rlm_wire.broker.writer import BACKLOG, ENOUGH
from rlm_wire.errors import CallError, SessionLost, TransportError, WireError
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.events import CreditReceived, Ended, Event, ItemReceived
from rlm_wire.frames.framing import ReceiveBuffer
from rlm_wire.frames.schema import NO_ITEMS, Cancel, Close, Fail, Goodbye, Pong, Reply
from rlm_wire.frames.schema import Call as CallFrame
from rlm_wire.methods.base import Request, RequestTypes, StreamRequest, request_types

Result = TypeVar("Result")
Received = TypeVar("Received")
Sent = TypeVar("Sent")

CLOSE_GRACE: Final = 5.0
"""Seconds for the last frames and the Goodbye to leave when a session is closed."""

CLOSED_HERE: Final = "the session was closed here"
ENDED_THERE: Final = "the peer ended the session"

State = Literal["connected", "reconnecting", "closed"]
"""Of a session: `reconnecting` is also what its server calls it while it waits for the client to come back."""


class Peer:
    """The other side of a session. Use it from the Trio run that opened it, from as many tasks as you like."""

    def __init__(
        self, connection: Connection, service: Service, info: PeerInfo, description: str, *, resumable: bool = False
    ) -> None:
        self.info = info
        self.service = service
        self.lifespan_state: Any = None
        """What the service's lifespan yielded: `call.state` in handlers."""
        self.interruption = ""
        """Why there is no connection, while `state` is `reconnecting`; for people."""
        self.loss: Loss | None = None
        """Set when the session was lost; None while it lives, and if it was closed here in order."""
        self._description = description
        self._resumable = resumable
        self._connection = connection
        self._line = Line(connection, self._handle)
        self._writer = self._line.writer
        self._queue_limit = min(BACKLOG, connection.limits.replay)
        self._calls: dict[int, Call[Any, Any, Any]] = {}
        self.handlers = Handlers(self)
        self._incoming = self.handlers.open
        self._many_at_once = False
        self._closing = False
        self._state: State = "connected"
        self._state_changed = trio.Event()
        self._error: SessionLost | None = None
        self._pongs: dict[int, trio.Event] = {}
        self._in_batch = False
        self._dispatch: dict[type, Callable[[Any], None]] = {
            CallFrame: self.handlers.receive_call, Reply: self._on_reply, Fail: self._on_fail,
            ItemReceived: self._on_item, Close: self._on_close, Cancel: self._on_cancel,
            CreditReceived: self._on_credit, Pong: self._on_pong, Ended: self._on_ended,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<Peer {self.info.software!r} at {self._description}, {self._state}>"

    async def call(self, request: Request[Result], *, timeout: float | None = None) -> Result:
        """Make a call and wait for its result; items of a stream request are not sent at all.

        `timeout` in seconds travels as the deadline of the handler. Raises CallError if the call failed (also
        `deadline_exceeded`), SessionLost if the session is or gets lost. While there is no connection it waits; so it
        does while more bytes are queued than the `replay` limit. Cancellation: the work is cancelled at the peer, and
        this waits, shielded and bounded by STOP_GRACE, until it has stopped.
        """
        if self._connection.queued > self._queue_limit:
            await self._wait_to_call(timeout)
        flags = NO_ITEMS if isinstance(request, StreamRequest) else 0
        return await self._finish(self._start(request, timeout, flags), timeout)

    async def _finish(self, call: Call[Result, Never, Never], timeout: float | None) -> Result:
        try:
            if timeout is None:
                return await call.result()
            with trio.move_on_after(timeout + DEADLINE_GRACE):
                return await call.result()
            call.give_up(f"no answer to {call.method} within {timeout} s")
            return await call.result()
        finally:
            await call.wait_stopped("cancelled by the caller")
            self._calls.pop(call.id, None)

    async def call_encoded(self, method: str, params: Any, *, scope: str | None) -> msgspec.Raw:
        """Make a call whose params are encoded already, and return its result encoded; else as `call`. For relays."""
        if self._connection.queued > self._queue_limit:
            await self._wait_to_call(None)
        call: Call[msgspec.Raw, Never, Never] = self._begin(
            method, params, RequestTypes(msgspec.Raw), scope=scope, deadline=None, flags=NO_ITEMS
        )
        return await self._finish(call, None)

    @asynccontextmanager
    async def open(
        self, request: StreamRequest[Result, Received, Sent], *, timeout: float | None = None
    ) -> AsyncIterator[Call[Result, Received, Sent]]:
        """Make a call with items; leaving the block cancels it if it has not ended, and waits until it has stopped.

        Raises like `call`. Cancellation: likewise.
        """
        await trio.lowlevel.checkpoint()
        if self._connection.queued > self._queue_limit:
            await self._wait_to_call(timeout)
        call: Call[Result, Received, Sent] = self._start(request, timeout, 0)
        try:
            yield call
        finally:
            await call.wait_stopped("its caller left")
            self._calls.pop(call.id, None)

    async def _wait_to_call(self, timeout: float | None) -> None:
        with trio.move_on_after(math.inf if timeout is None else timeout):
            await self.wait_room()
            return
        raise CallError("deadline_exceeded", f"the call could not be queued within {timeout} s")

    async def ping(self) -> float:
        """Round trip to the peer's reader in seconds. Raises SessionLost. Cancellation: harmless."""
        token = max(self._pongs, default=0) + 1
        pong = self._pongs[token] = trio.Event()
        start = trio.current_time()
        try:
            self.send_ping(token)
            await pong.wait()
        finally:
            self._pongs.pop(token, None)
        self._check_open()
        return trio.current_time() - start

    async def wait_closed(self) -> None:
        """Wait until the session has ended, by a Goodbye or by loss."""
        await self.wait_state("closed")

    @property
    def closed(self) -> bool:
        """True when the session has ended."""
        return self._state == "closed"

    @property
    def state(self) -> State:
        """Whether there is a connection. Calls can be made without one: they wait for it."""
        return self._state

    async def wait_state(self, *states: State) -> State:
        """Wait until the state is one of `states`, and return it. Cancellation: harmless."""
        await trio.lowlevel.checkpoint()
        while self._state not in states:
            await self._state_changed.wait()
        return self._state

    def _set_state(self, state: State) -> None:
        self._state = state
        self._state_changed.set()
        self._state_changed = trio.Event()

    @property
    def queued(self) -> int:
        """Bytes that wait for the peer."""
        return self._connection.queued

    def decode(self, value: Any, type_: Any, what: str) -> Any:
        return self._connection.codec.decode_value(value, type_, what)

    def item_gate(self, call_id: int) -> ItemGate:
        return ItemGate(call_id, self._connection, self._writer)

    async def wait_room(self) -> None:
        """Wait while far more is queued than the peer takes, or than may be kept for one that is away."""
        while self._connection.queued > self._queue_limit and not self._connection.ended and not self.closed:
            await self._writer.wait_room()

    def send_item(self, call_id: int, item: Any) -> None:
        self._connection.send_item(call_id, item)
        self._writer.wake()

    def close_sending(self, call_id: int) -> None:
        self._connection.close_sending(call_id)
        self._flush()

    def cancel_call(self, call: Call[Any, Any, Any], reason: str) -> None:
        if self._connection.ended:
            return  # the session is closing here, and the call is about to be told
        if self._connection.cancel(call.id, reason):
            self._calls.pop(call.id).end_unsent()
        self._flush()

    def consumed(self, call_id: int, item: ItemReceived) -> None:
        self._connection.consumed(call_id, item)
        if self._connection.queued:
            self._writer.wake()

    def reply(self, call_id: int, result: Any) -> None:
        if not self._connection.ended:
            self._connection.reply(call_id, result)
            self._incoming.pop(call_id, None)
            self._flush()

    def fail(self, call_id: int, error: CallError) -> None:
        if not self._connection.ended:
            self._connection.fail(call_id, error)
            self._incoming.pop(call_id, None)
            self._flush()

    def send_ping(self, token: int) -> None:
        self._check_open()
        self._line.ping(token)

    def lose(self, error: WireError, farewell: str = "the session was given up") -> None:
        """The session is over: every open call fails, every handler is cancelled.

        A peer that still listens is told `farewell`.
        """
        if self.closed:
            return
        message = CLOSED_HERE if self._closing else str(error)  # the peer hung up on our Goodbye, as it should
        fates = self._connection.fates()
        self._error = SessionLost(message)
        lost = [LostCall(call.method, fates.get(call.id, "maybe_executed")) for call in self._calls.values()]
        if message != CLOSED_HERE:
            self.loss = Loss(message, lost)
        self._set_state("closed")
        for call, known in zip(self._calls.values(), lost, strict=True):
            call.lose(SessionLost(message, fate=known.fate))
        self._calls.clear()
        for pong in self._pongs.values():
            pong.set()
        self._writer.close()
        self._line.leave(None if self._connection.ended else Goodbye(error.code, farewell))
        self.handlers.cancel(message)

    async def run_link(self, link: Link, patience: Patience | None) -> None:
        """Go on over `link` until it ends. Afterwards the session is closed, or waits for `resume` and another link.

        Shielded; `lose` and `leave_link` end it. Without `patience` a silent peer is not taken for dead.
        """
        if self.closed:
            return
        self._set_state("connected")
        error = await self._line.run(link, patience)
        if self.closed:
            return
        reason = _explain(error, link)
        if self._resumable and self._line.ended is None and not self._closing:
            self.interruption = reason
            self._set_state("reconnecting")
        else:
            self.lose(SessionLost(reason))

    def leave_link(self, farewell: Goodbye) -> None:
        """End the link, if there is one: nothing more is taken from it. `farewell` is said if that needs no wait."""
        self._line.leave(farewell)

    def resume(self, received: int, buffer: ReceiveBuffer) -> None:
        """Before a new link, whose handshake is over: the peer has `received` frames. Raises RemoteProtocolError."""
        self._connection.resume(received, buffer)
        for token in self._pongs:
            self._connection.ping(token)

    @property
    def frames_received(self) -> int:
        """What the peer is to be told when it is resumed."""
        return self._connection.frames_received

    def check_resume_untrusted(self, received: int) -> None:
        """RemoteProtocolError unless the peer can have received so many frames."""
        self._connection.check_resume_untrusted(received)

    def _handle(self, events: list[Event]) -> None:
        """Hand on one batch."""
        self._in_batch = True
        self._many_at_once = len(events) > 1
        events.reverse()
        while events:  # nothing here keeps an event that is being handled: a large message may end before its answer
            self._dispatch[type(events[-1])](events.pop())
        self._in_batch = False
        self._writer.flush()

    # ---------------------------------------------------------------- its ending

    @property
    def ready(self) -> trio.Event:
        """Set when calls may come."""
        return self._line.ready

    async def say_goodbye(self) -> None:
        """Send what is queued, and the Goodbye, if there is a connection; shielded, and at most CLOSE_GRACE."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_GRACE):
            self._closing = True
            self._connection.goodbye()
            if not self.closed:
                await self._writer.drain()
        self.lose(SessionLost(CLOSED_HERE))

    def _on_reply(self, frame: Reply) -> None:
        call = self._calls.pop(frame.id, None)
        if call is not None:
            call.receive_reply(frame)

    def _on_fail(self, frame: Fail) -> None:
        call = self._calls.pop(frame.id, None)
        if call is not None:
            call.receive_fail(frame)

    def _on_item(self, event: ItemReceived) -> None:
        call = self._calls.get(event.id) or self._incoming.get(event.id)
        if call is not None:
            call.receive_item(event)

    def _on_close(self, frame: Close) -> None:
        call = self._calls.get(frame.id) or self._incoming.get(frame.id)
        if call is not None:
            call.receive_close()

    def _on_cancel(self, frame: Cancel) -> None:
        call = self._incoming.get(frame.id)
        if call is not None:
            call.receive_cancel(frame.reason)

    def _on_credit(self, event: CreditReceived) -> None:
        call = self._calls.get(event.id) or self._incoming.get(event.id)
        if call is not None:
            call.receive_credit()

    def _on_pong(self, frame: Pong) -> None:
        pong = self._pongs.get(frame.token)
        if pong is not None:
            pong.set()

    def _on_ended(self, event: Ended) -> None:
        self._line.ended = event
        self._error = SessionLost(str(event.error or ENDED_THERE))  # for calls made until the link's tasks have ended

    def _start(self, request: Request[Any], timeout: float | None, flags: int) -> Call[Any, Any, Any]:
        cls = type(request)
        return self._begin(
            cls.method, request, request_types(cls), scope=current_scope.get(), deadline=timeout, flags=flags
        )

    def _begin(
        self, method: str, params: Any, types: RequestTypes, *, scope: str | None, deadline: float | None, flags: int
    ) -> Call[Any, Any, Any]:
        self._check_open()
        call_id = self._connection.call(method, params, scope=scope, deadline=deadline, flags=flags)
        call = self._calls[call_id] = Call(self, call_id, method, types)
        self._flush()
        self._many_at_once = True  # until something comes back: more calls made now are a burst, and leave together
        return call

    def _check_open(self) -> None:
        if self._error is not None:
            raise SessionLost(str(self._error), fate="not_sent")

    def _flush(self) -> None:
        enough = self._connection.queued_frames >= ENOUGH
        if self._in_batch and not enough:
            return  # the reader flushes at the end
        if self._many_at_once and not enough:
            self._writer.wake()  # others are about to send too: let their frames leave together
        else:
            self._writer.flush()


def _explain(error: WireError | None, link: Link) -> str:
    """Why `link` ended, with what it knows of that itself."""
    if error is None:
        return ENDED_THERE
    message = (
        f"the connection to {link.description} broke: {error}" if isinstance(error, TransportError) else str(error)
    )
    why = link.diagnose()
    return f"{message} ({why})" if why else message
