"""One session, seen from this side: calls out, calls in, and the tasks that serve them.

The reader never writes and never waits for a handler: it decodes a batch of frames, hands each on, and lets the writer
flush once at the end. Plain-function handlers run in it; others get tasks in a nursery of their own, which is ended
before the Goodbye, so that nothing of a session outlives it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Never, TypeVar

import msgspec
import trio

from rlm_wire.broker.calls import DEADLINE_GRACE, Call
from rlm_wire.broker.groups import one_error
from rlm_wire.broker.incoming import IncomingCall, answer, to_call_error
from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.items import ItemGate
from rlm_wire.broker.keepalive import keep_alive
from rlm_wire.broker.link import Link
from rlm_wire.broker.scopes import current_scope
from rlm_wire.broker.services import Registration, Service
from rlm_wire.broker.writer import BACKLOG, ENOUGH, FLOODED, Writer
from rlm_wire.errors import CallError, RemoteProtocolError, SessionLost, TransportError, WireError
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.events import CreditReceived, Ended, Event, ItemReceived
from rlm_wire.frames.schema import NO_ITEMS, Cancel, Close, Fail, Pong, Reply
from rlm_wire.frames.schema import Call as CallFrame
from rlm_wire.methods.base import Request, RequestTypes, StreamRequest, request_types

Result = TypeVar("Result")
Received = TypeVar("Received")
Sent = TypeVar("Sent")

CLOSE_GRACE: Final = 5.0
"""Seconds for the last frames and the Goodbye to leave when a session is closed."""

CLOSED_HERE: Final = "the session was closed here"


class Peer:
    """The other side of a session. Use it from the Trio run that opened it, from as many tasks as you like."""

    def __init__(self, connection: Connection, link: Link, service: Service, info: PeerInfo) -> None:
        self.info = info
        self.service = service
        self.state: Any = None
        self.batches = 0
        self._connection = connection
        self._link = link
        self._writer = Writer(connection, link)
        self._calls: dict[int, Call[Any, Any, Any]] = {}
        self._incoming: dict[int, IncomingCall[Any, Any]] = {}
        self.ready = trio.Event()
        """Set when calls may come."""
        self._machinery = trio.CancelScope(shield=True)
        self._handlers = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._handlers_ended = trio.Event()
        self._many_at_once = False
        self._closing = False
        self._ended: Ended | None = None
        self._closed = trio.Event()
        self._error: SessionLost | None = None
        self._pongs: dict[int, trio.Event] = {}
        self._in_batch = False
        self._dispatch: dict[type, Callable[[Any], None]] = {
            CallFrame: self._on_call, Reply: self._on_reply, Fail: self._on_fail, ItemReceived: self._on_item,
            Close: self._on_close, Cancel: self._on_cancel, CreditReceived: self._on_credit, Pong: self._on_pong,
            Ended: self._on_ended,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<Peer {self.info.software!r} at {self._link.description}>"

    async def call(self, request: Request[Result], *, timeout: float | None = None) -> Result:
        """Make a call and wait for its result; items of a stream request are not sent at all.

        `timeout` in seconds travels as the deadline of the handler. Raises CallError if the call failed (also
        `deadline_exceeded`), SessionLost if the session is or gets lost. Cancellation: the work is cancelled at the
        peer, and this waits, shielded and bounded by STOP_GRACE, until it has stopped.
        """
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
        call: Call[Result, Received, Sent] = self._start(request, timeout, 0)
        try:
            yield call
        finally:
            await call.wait_stopped("its caller left")
            self._calls.pop(call.id, None)

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
        await self._closed.wait()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def decode(self, value: Any, type_: Any, what: str) -> Any:
        return self._connection.codec.decode_value(value, type_, what)

    def item_gate(self, call_id: int) -> ItemGate:
        return ItemGate(call_id, self._connection, self._writer)

    async def wait_room(self) -> None:
        """Wait while far more is queued than the peer takes."""
        while self._connection.queued > BACKLOG and not self._connection.ended:
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
        self._connection.ping(token)
        self._flush()

    def lose(self, error: WireError) -> None:
        """The session is over: every open call fails, every handler is cancelled."""
        if self._closed.is_set():
            return
        message = self._explain(error)
        self._error = SessionLost(message)
        self._closed.set()
        unsent = self._connection.unsent_calls()
        for call_id, call in self._calls.items():
            call.lose(SessionLost(message, fate="not_sent" if call_id in unsent else "maybe_executed"))
        self._calls.clear()
        for pong in self._pongs.values():
            pong.set()
        self._writer.close()
        self._handlers.cancel(message)

    async def read(self) -> None:
        """The reader: runs until the session has ended."""
        connection, link = self._connection, self._link
        try:
            self._handle(connection.process())  # what came right behind the handshake
            while self._ended is None:
                count = await link.receive_into(connection.writable())
                self.batches += 1
                if count:
                    self._handle(connection.received(count))
                else:
                    self._ended = connection.end_of_stream()
            error = self._ended.error
        except (TransportError, trio.ClosedResourceError) as broken:
            error = broken if isinstance(broken, TransportError) else TransportError("the stream is closed")
        if isinstance(error, RemoteProtocolError):
            with trio.move_on_after(CLOSE_GRACE):
                await self._writer.drain()  # the peer should hear why
        self.lose(error or SessionLost("the peer ended the session"))

    def _handle(self, events: list[Event]) -> None:
        """Hand on one batch."""
        self._in_batch = True
        self._many_at_once = len(events) > 1
        events.reverse()
        while events:  # nothing here keeps an event that is being handled: a large message may end before its answer
            self._dispatch[type(events[-1])](events.pop())
        self._in_batch = False
        self._writer.flush()

    async def write(self) -> None:
        """The writer: runs until the stream breaks or it is cancelled."""
        try:
            await self._writer.run()
        except (TransportError, trio.ClosedResourceError) as broken:
            self.lose(broken if isinstance(broken, TransportError) else TransportError("the stream is closed"))

    async def run(self, keepalive: bool) -> None:
        """All tasks of the session, until `stop`.

        Shielded: when the session's user is cancelled, its calls still wait for the peer's word on them, and the
        Goodbye must leave.
        """
        with self._machinery, one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.write)
                await self.ready.wait()
                nursery.start_soon(self.read)
                if keepalive:
                    nursery.start_soon(keep_alive, self)
                await self._run_handlers()

    def stop(self) -> None:
        """End the session's tasks."""
        self._machinery.cancel()

    async def _run_handlers(self) -> None:
        try:
            with self._handlers, one_error():
                async with trio.open_nursery() as self._nursery:
                    await trio.sleep_forever()
        finally:
            self._handlers_ended.set()

    async def end_handlers(self) -> None:
        """Cancel the handlers and wait, shielded, until they have ended."""
        self._handlers.cancel("the session is ending")
        with trio.CancelScope(shield=True):
            await self._handlers_ended.wait()

    async def say_goodbye(self) -> None:
        """Send what is queued, and the Goodbye; shielded, and at most CLOSE_GRACE."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_GRACE):
            self._closing = True
            self._connection.goodbye()
            if not self._closed.is_set():
                await self._writer.drain()
        self.lose(SessionLost(CLOSED_HERE))

    def _on_call(self, frame: CallFrame) -> None:
        registration = self.service.find(frame.method)
        if registration is None:
            name = frame.method[:200]
            self.fail(frame.id, CallError("unimplemented", f"there is no method {name!r} here"))
            return
        if self._handlers.cancel_called:
            self.fail(frame.id, CallError("unavailable", "the session is closing", retryable=True))
            return
        if self._connection.queued > FLOODED:
            busy = f"{self._connection.queued} bytes wait for this peer to read them"
            self.fail(frame.id, CallError("resource_exhausted", busy, retryable=True))
            return
        try:
            request = self.decode(frame.params, registration.request, f"params of {frame.method}")
        except CallError as error:
            self.fail(frame.id, error)
            return
        if registration.is_async:
            call: IncomingCall[Any, Any] = IncomingCall(self, frame, registration)
            self._incoming[frame.id] = call
            assert self._nursery is not None
            self._nursery.start_soon(call.run, request, name=frame.method)
            return
        arguments = (request, IncomingCall(self, frame, registration)) if registration.takes_call else (request,)
        call_id = frame.id
        del frame  # its bytes may be many, and the answer needs room
        self._run_now(call_id, registration, arguments)

    def _run_now(self, call_id: int, registration: Registration, arguments: tuple[Any, ...]) -> None:
        try:
            result = registration.function(*arguments)
        except Exception as error:  # noqa: BLE001 - the boundary: whatever a handler raises becomes an answer
            self.fail(call_id, to_call_error(error, registration.method))
        else:
            answer(self, call_id, registration, result)

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
        self._ended = event

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
        return call

    def _explain(self, error: WireError) -> str:
        if self._closing:
            return CLOSED_HERE  # the peer hung up on our Goodbye, as it should
        message = str(error)
        if isinstance(error, TransportError):
            message = f"the connection to {self._link.description} broke: {message}"
        why = self._link.diagnose()
        return f"{message} ({why})" if why else message

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
