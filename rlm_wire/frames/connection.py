"""One side of an established session: frames in, events out; intentions in, bytes out. Spec §4 to §7.

A Connection outlives the byte streams under it: the handshake (`handshake.py`) comes before it and is repeated on a new
stream, after which `resume` goes on where the old one stopped. It knows of calls only what the protocol needs: which
ids are open, the state and windows of their items. Values stay encoded; the broker knows their types.

Misuse by this side raises LocalProtocolError. What the peer does wrong never raises: `received` answers it with a
Goodbye and an `Ended` event. A value that cannot be sent raises CallError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlm_wire.errors import CallError, Fate, LocalProtocolError, RemoteProtocolError, SessionLost, WireError
from rlm_wire.frames import limits as number
from rlm_wire.frames.assembly import Assembly
from rlm_wire.frames.codec import Buffer, Codec, sendable_text
from rlm_wire.frames.credit import SendWindow
from rlm_wire.frames.events import CreditReceived, Ended, Event, ItemReceived
from rlm_wire.frames.framing import ReceiveBuffer, readable
from rlm_wire.frames.items import Items
from rlm_wire.frames.limits import Limits
from rlm_wire.frames.outbox import Outbox
from rlm_wire.frames.replay import ReplayBuffer
from rlm_wire.frames.schema import Ack, Call, Cancel, Close, Credit, Fail, Goodbye, Item, Part, Ping, Pong, Reply
from rlm_wire.frames.state import Step, next_call_state


class Connection:
    """See the module. `client` decides the parity of ids; `ours` and `theirs` are the limits of both sides."""

    def __init__(
        self, *, client: bool, codec: Codec, ours: Limits, theirs: Limits, buffer: ReceiveBuffer | None = None
    ) -> None:
        self.limits = ours.lowest(theirs)
        self.codec = codec
        self.ended = False
        self.unfinished = False
        self._buffer = ReceiveBuffer(self.limits.frame) if buffer is None else buffer
        self._buffer.frame_limit = self.limits.frame
        self._replay = ReplayBuffer(self.limits.replay)
        self._parts_to_send = SendWindow(self.limits.reassembly)
        self._outbox = Outbox(codec, self._replay, self._parts_to_send)
        self._calls: dict[int, Items | None] = {}  # ours and the peer's: parity keeps them apart
        self._parity = 1 if client else 0
        self._next_id = 1 if client else 2
        self._open_here = 0
        self._open_there = 0
        self._assembly = Assembly(self.limits)
        self._growth_left = number.WINDOW_GROWTH_LIMIT
        self._received = 0
        self._acknowledged = 0
        self._unacknowledged_bytes = 0
        # A peer whose replay buffer is small must be able to send its largest frame while less than this is unsaid.
        self._ack_bytes = min(number.ACK_BYTES, self.limits.replay - self.limits.frame + 1)
        self._handlers: dict[type, Callable[[Any, int, list[Event]], None]] = {
            Call: self._on_call, Item: self._on_item, Close: self._on_close, Reply: self._on_end, Fail: self._on_end,
            Cancel: self._on_cancel, Credit: self._on_credit, Part: self._on_part, Ack: self._on_ack,
            Ping: self._on_ping, Pong: self._on_pong, Goodbye: self._on_goodbye,
        }  # fmt: skip

    # ------------------------------------------------------------------ sending

    def call(
        self, method: str, params: Any, *, scope: str | None = None, deadline: float | None = None, flags: int = 0
    ) -> int:
        """Queue a Call and return its id. CallError if it cannot be encoded, is too large, or too many are open."""
        if self._open_here >= self.limits.calls:
            raise CallError("resource_exhausted", f"{self.limits.calls} calls are in flight already", retryable=True)
        if deadline is not None:
            deadline = max(0.0, deadline)
        call_id = self._next_id
        self._put(call_id, Call(call_id, method, params, scope, deadline, flags), opens=True)
        self._next_id += 2
        self._calls[call_id] = None
        self._open_here += 1
        return call_id

    def may_send_item(self, call_id: int) -> bool:
        """True while the window of the call's items is open."""
        items = self._calls.get(call_id)
        return items is None or items.send.left > 0

    def send_item(self, call_id: int, value: Any) -> None:
        """Queue an item of an open call. LocalProtocolError if the window is used up or sending was closed."""
        items = self._items(call_id)
        if items.send.left <= 0:
            raise LocalProtocolError(f"call {call_id}: no credit")
        state = next_call_state(items.state, Step.SEND_ITEM, call_id)
        items.send.spend(self._put(call_id, Item(call_id, value)))
        items.state = state

    def close_sending(self, call_id: int) -> None:
        """Queue a Close: no more items from this side."""
        self._items(call_id).step(Step.SEND_CLOSE, call_id)
        self._put(call_id, Close(call_id))

    def reply(self, call_id: int, result: Any) -> None:
        """End a call of the peer with its result. CallError, and the call stays open, if it cannot be sent."""
        self._check_open(call_id, ours=False)
        self._put(call_id, Reply(call_id, result))
        self._forget(call_id)

    def fail(self, call_id: int, error: CallError) -> None:
        """End a call of the peer with `error`; long text is cut, data that cannot be sent is dropped."""
        self._check_open(call_id, ours=False)
        text = sendable_text(error.message)
        try:
            self._put(call_id, Fail(call_id, error.code, text, error.data, error.retryable))
        except CallError:
            self._put(call_id, Fail(call_id, error.code, text, None, error.retryable))
        self._forget(call_id)

    def cancel(self, call_id: int, reason: str = "") -> bool:
        """Ask the peer to stop an open call of ours. True if it was still queued: it is dropped, and ended, unsent.

        Items that are queued are dropped too: they must not hold up the Cancel. Cancelling again does nothing, nor
        does cancelling a call that has ended: the event that says so may not have been looked at yet.
        """
        if call_id & 1 == self._parity and call_id not in self._calls and call_id < self._next_id:
            return False
        self._check_open(call_id, ours=True)
        items = self._items(call_id)
        if items.cancelled:
            return False
        if self._outbox.withdraw(call_id):
            self._forget(call_id)
            return True
        items.step(Step.SEND_CANCEL, call_id)
        items.cancelled = True
        self._put(call_id, Cancel(call_id, sendable_text(reason)))
        return False

    def consumed(self, call_id: int, item: ItemReceived) -> None:
        """The application has taken `item`: its bytes may be sent again. After the call's end it does nothing."""
        items = self._calls.get(call_id)
        if items is not None and not self.ended:
            if item.sliced:
                items.sliced -= item.size
                self._grant_parts(item.size)
            amount, growth = items.receive.consume(item.size, self._growth_left)
            self._growth_left -= growth
            if amount:
                self._put(0, Credit(call_id, amount))

    def ping(self, token: int) -> None:
        """Queue a Ping; its Pong comes back as an event."""
        self._put_control(Ping(token))

    def goodbye(self, code: str = "", message: str = "") -> None:
        """Queue the end: it goes out behind everything queued before, and nothing may be sent after it."""
        if not self.ended:
            self._outbox.put_last(self.codec.encode(Goodbye(code, sendable_text(message))))
            self.ended = True

    @property
    def queued(self) -> int:
        """Bytes of numbered frames that wait to be sent."""
        return self._outbox.size

    @property
    def queued_frames(self) -> int:
        """Number of small frames that wait to be sent."""
        return self._outbox.frames

    def data_to_send(self, limit: int) -> list[Buffer]:
        """Pieces to write next, in order, about `limit` bytes; empty if there is nothing that may be sent now."""
        return self._outbox.take(limit)

    def fates(self) -> dict[int, Fate]:
        """What became of each open call of ours, should the session be lost now. Spec §7.4."""
        frames = map(self.codec.decode_frame_untrusted, self._outbox.unsent())
        unsent = {frame.id for frame in frames if isinstance(frame, Call)}
        fates: dict[int, Fate] = {}
        for call_id, items in self._calls.items():
            if call_id & 1 == self._parity:
                heard = items is not None and items.heard
                fates[call_id] = "executed" if heard else "not_sent" if call_id in unsent else "maybe_executed"
        return fates

    # ---------------------------------------------------------------- receiving

    def writable(self) -> memoryview:
        """Space to receive into; ends the validity of the values in events before."""
        return self._buffer.writable()

    def received(self, count: int, limit: int | None = None) -> list[Event]:
        """Take note of `count` bytes in `writable()`; events of the frames that are whole now. Never raises."""
        self._buffer.wrote(count)
        return self.process(limit)

    def process(self, limit: int | None = None) -> list[Event]:
        """Events of the frames that are whole in the buffer: of the next `limit` of them, `unfinished` if so many came.

        Call it again then, before `writable()`.
        """
        events: list[Event] = []
        left = limit or -1
        try:
            while not self.ended and left and (body := self._buffer.next_body_untrusted()) is not None:
                left -= 1
                frame = self.codec.decode_frame_untrusted(body)
                size = len(body)
                if type(frame) not in _UNNUMBERED:
                    self._received += 1
                    self._unacknowledged_bytes += size
                self._handlers[type(frame)](frame, size, events)
            if self._outbox.frames > number.QUEUED_FRAMES_LIMIT:
                raise RemoteProtocolError("the peer sends and does not read", code="resource_exhausted")
        except RemoteProtocolError as error:
            self._end(error, events)
        if self._received - self._acknowledged >= number.ACK_FRAMES or self._unacknowledged_bytes >= self._ack_bytes:
            self._acknowledge()
        self.unfinished = not left and not self.ended
        return events

    def end_of_stream(self) -> Ended:
        """The byte stream ended or broke without a Goodbye: this is the end, unless `resume` follows."""
        torn = f" in the middle of a frame ({len(self._buffer)} bytes of it came)" if len(self._buffer) else ""
        return Ended(SessionLost(f"the connection ended{torn}"))

    # ----------------------------------------------------------------- resuming

    @property
    def frames_received(self) -> int:
        """Numbered frames received so far: what the peer is told on a new stream."""
        return self._received

    def check_resume_untrusted(self, received: int) -> None:
        """RemoteProtocolError unless the peer can have received so many numbered frames."""
        self._replay.check_untrusted(received)

    def resume(self, received: int, buffer: ReceiveBuffer) -> None:
        """Go on over a new stream, whose bytes come through `buffer`, with a peer that has `received` frames.

        What it lacks is sent again, ahead of anything new; half a frame of the old stream is forgotten, and its control
        frames are void. RemoteProtocolError if the peer cannot have so many.
        """
        self._replay.acknowledge_untrusted(received)
        self._outbox.resend(self._replay.unacknowledged())
        self._buffer, buffer.frame_limit = buffer, self.limits.frame
        self._acknowledged = self._received  # the handshake has said so
        self._unacknowledged_bytes = 0

    # ------------------------------------------------------- one method a frame

    def _on_call(self, frame: Call, size: int, events: list[Event]) -> None:
        if frame.id & 1 == self._parity:
            raise RemoteProtocolError(f"call id {frame.id} has this side's parity")
        if frame.id in self._calls:
            raise RemoteProtocolError(f"call id {frame.id} is in use")
        if self._open_there >= self.limits.calls:
            busy = f"{self.limits.calls} calls are in flight already"
            self._put(frame.id, Fail(frame.id, "resource_exhausted", busy, None, True))
            return
        self._calls[frame.id] = None
        self._open_there += 1
        events.append(frame)

    def _on_item(self, frame: Item, size: int, events: list[Event], sliced: bool = False) -> None:
        if frame.id not in self._calls:
            self._late(frame.id, size, sliced)
            return
        items = self._items(frame.id)
        items.step(Step.RECEIVE_ITEM, frame.id)
        items.receive.receive_untrusted(size, frame.id)
        items.heard = True
        if sliced:
            items.sliced += size
        events.append(ItemReceived(frame.id, frame.value, size, sliced))

    def _on_close(self, frame: Close, size: int, events: list[Event]) -> None:
        if frame.id in self._calls:
            items = self._items(frame.id)
            items.step(Step.RECEIVE_CLOSE, frame.id)
            items.heard = True
            events.append(frame)

    def _on_end(self, frame: Reply | Fail, size: int, events: list[Event]) -> None:
        if frame.id & 1 != self._parity or frame.id >= self._next_id:
            raise RemoteProtocolError(f"{type(frame).__name__} for call {frame.id}, which was never made")
        if frame.id in self._calls:
            self._forget(frame.id)
            events.append(frame)

    def _on_cancel(self, frame: Cancel, size: int, events: list[Event]) -> None:
        if frame.id & 1 == self._parity:
            raise RemoteProtocolError(f"Cancel of call {frame.id}, which is not the peer's own")
        if frame.id in self._calls:
            self._items(frame.id).step(Step.RECEIVE_CANCEL, frame.id)
            events.append(frame)

    def _on_credit(self, frame: Credit, size: int, events: list[Event]) -> None:
        if frame.id == 0:
            self._parts_to_send.grant_untrusted(frame.bytes)
        elif frame.id in self._calls:
            items = self._items(frame.id)
            items.send.grant_untrusted(frame.bytes)
            items.heard = True
            events.append(CreditReceived(frame.id))

    def _on_part(self, frame: Part, size: int, events: list[Event]) -> None:
        whole = self._assembly.add_untrusted(frame)
        if whole is None:
            return
        total = len(whole)
        message = self.codec.decode_frame_untrusted(whole)
        if type(message) in _UNNUMBERED or isinstance(message, Part):
            raise RemoteProtocolError(f"{type(message).__name__} must not be sliced")
        if isinstance(message, Item):
            self._on_item(message, total, events, sliced=True)
        else:
            self._handlers[type(message)](message, total, events)
            self._grant_parts(total)
        self._acknowledge()  # at once: the sender keeps the whole message until it knows

    def _on_ack(self, frame: Ack, size: int, events: list[Event]) -> None:
        self._replay.acknowledge_untrusted(frame.received)

    def _on_ping(self, frame: Ping, size: int, events: list[Event]) -> None:
        self._put_control(Pong(frame.token))

    def _on_pong(self, frame: Pong, size: int, events: list[Event]) -> None:
        events.append(frame)

    def _on_goodbye(self, frame: Goodbye, size: int, events: list[Event]) -> None:
        self.ended = True
        said = f"the peer ended the session: {readable(frame.message or frame.code)}"
        events.append(Ended(SessionLost(said) if frame.code else None))

    # ------------------------------------------------------------------ details

    def _put(self, call_id: int, frame: Any, *, opens: bool = False) -> int:
        if self.ended:
            raise SessionLost("the session has ended", fate="not_sent" if opens else "maybe_executed")
        body = self.codec.encode(frame)
        if len(body) > self.limits.message:
            raise CallError(
                "resource_exhausted",
                f"the message has {len(body)} bytes, the limit is {self.limits.message}: send less, or stream it",
                data={"bytes": len(body), "limit": self.limits.message},
            )
        self._outbox.put(call_id, body, opens=opens)
        return len(body)

    def _put_control(self, frame: Any) -> None:
        self._outbox.put_control(self.codec.encode(frame))

    def _items(self, call_id: int) -> Items:
        try:
            items = self._calls[call_id]
        except KeyError:
            raise LocalProtocolError(f"call {call_id} is not open") from None
        if items is None:
            items = self._calls[call_id] = Items(self.limits.item_window)
        return items

    def _check_open(self, call_id: int, *, ours: bool) -> None:
        if call_id not in self._calls or (call_id & 1 == self._parity) is not ours:
            raise LocalProtocolError(f"there is no open call {call_id} of {'ours' if ours else 'the peer'}")

    def _forget(self, call_id: int) -> None:
        items = self._calls.pop(call_id)
        if items is not None:
            if items.sliced:  # whoever holds these may never consume them, and all calls share the window
                self._grant_parts(items.sliced)
            self._growth_left += items.receive.size - self.limits.item_window
        if call_id & 1 == self._parity:
            self._open_here -= 1
        else:
            self._open_there -= 1

    def _late(self, call_id: int, size: int, sliced: bool) -> None:
        if call_id & 1 == self._parity and call_id >= self._next_id:
            raise RemoteProtocolError(f"Item for call {call_id}, which was never made")
        if sliced:
            self._grant_parts(size)

    def _grant_parts(self, size: int) -> None:
        self._assembly.consumed(size)
        if not self.ended:
            self._put(0, Credit(0, size))

    def _acknowledge(self) -> None:
        if self._received > self._acknowledged and not self.ended:
            self._acknowledged = self._received
            self._unacknowledged_bytes = 0
            self._put_control(Ack(self._received))

    def _end(self, error: WireError, events: list[Event]) -> None:
        self._outbox.drop_all()
        self.goodbye(error.code, str(error))
        events.append(Ended(error))


_UNNUMBERED = frozenset({Goodbye, Ping, Pong, Ack})
