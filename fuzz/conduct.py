"""What a connection may tell its owner and what it may send, judged from outside, apart from the code under test."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from fuzz.rejections import check_listed
from rlm_wire.errors import CODES
from rlm_wire.frames.codec import Codec
from rlm_wire.frames.events import CreditReceived, Ended, Event, ItemReceived
from rlm_wire.frames.limits import HEADER_SIZE, HIGHEST_ID, Limits
from rlm_wire.frames.schema import Ack, Call, Cancel, Close, Credit, Fail, Frame, Goodbye, Part, Ping, Pong, Reply


class CallSeen(msgspec.Struct):
    """One open call, as the owner of a connection knows it."""

    id: int
    ours: bool
    sending: bool = True
    receiving: bool = True
    has_consumed: bool = False
    items: deque[ItemReceived] = msgspec.field(default_factory=deque)


class Conduct:
    """The calls that are open, after every event and every act of the owner. Each `saw` and `sent` is checked.

    `numbered` counts the numbered frames that were sent, `granted` the bytes that the peer got credit for Parts;
    `half_sent` holds messages of which Parts are still to come.
    """

    def __init__(self, *, client: bool, codec: Codec, limits: Limits) -> None:
        self.calls: dict[int, CallSeen] = {}
        self.ended = False
        self._parity = 1 if client else 0
        self._codec = codec
        self._limits = limits
        self._acknowledged = 0
        self.numbered = 0
        self.granted = 0
        self._said_goodbye = False
        self.half_sent: dict[int, bytearray] = {}

    def opened(self, call_id: int) -> None:
        """Our side made a call."""
        assert call_id not in self.calls
        assert call_id & 1 == self._parity
        self.calls[call_id] = CallSeen(call_id, ours=True)

    def saw(self, event: Event) -> None:
        """AssertionError unless `event` may come now."""
        assert not self.ended, f"{event} after the end"
        match event:
            case Ended(error=error):
                self.ended = True
                if error is not None:
                    check_listed(error)
                    assert error.code in CODES
            case Call():
                assert 1 <= event.id <= HIGHEST_ID
                assert event.id & 1 != self._parity, "a call of the peer with an id of ours"
                assert event.id not in self.calls, "a second call with the same id"
                assert event.deadline is None or event.deadline >= 0
                self.calls[event.id] = CallSeen(event.id, ours=False)
                theirs = sum(not call.ours for call in self.calls.values())
                assert theirs <= self._limits.calls, "more calls than the limit"
            case Pong():
                pass
            case CreditReceived():
                assert event.id in self.calls
            case _:
                self._saw_in_call(event, self.calls[event.id])

    def _saw_in_call(self, event: Any, call: CallSeen) -> None:
        match event:
            case ItemReceived():
                assert call.receiving, "an item after the end of its direction"
                held = sum(item.size for item in call.items)
                assert held < self._limits.item_window or call.has_consumed, "an item beyond the window"
                call.items.append(event)
            case Close():
                assert call.receiving, "a second close"
                call.receiving = False
            case Cancel():
                assert not call.ours, "the peer cancels a call of ours"
                call.receiving = False
            case Reply() | Fail():
                assert call.ours, "the peer answers its own call"
                del self.calls[call.id]
            case _:
                raise AssertionError(f"no such event: {event!r}")

    def not_consumed(self) -> int:
        """Bytes of Parts that the owner still holds."""
        return sum(item.size for call in self.calls.values() for item in call.items if item.sliced)

    def sent(self, stream: bytes) -> list[Frame]:
        """The frames in what our side wants to send, which must be whole, within the limits, and in order."""
        frames = []
        while stream:
            length = int.from_bytes(stream[:HEADER_SIZE], "big")
            assert 0 < length <= self._limits.frame, f"a frame of {length} bytes was sent"
            assert HEADER_SIZE + length <= len(stream), "half a frame was sent"
            body, stream = stream[HEADER_SIZE : HEADER_SIZE + length], stream[HEADER_SIZE + length :]
            frames.append(self._codec.decode_frame_untrusted(body))
            self._check_sent(frames[-1])
        return frames

    def _check_sent(self, frame: Frame) -> None:
        assert not self._said_goodbye, "a frame behind Goodbye"
        if not isinstance(frame, Goodbye | Ping | Pong | Ack):
            self.numbered += 1
        match frame:
            case Goodbye():
                self._said_goodbye = True
                assert frame.code in CODES or not frame.code
            case Ack():
                assert frame.received > self._acknowledged, "an Ack that says nothing new"
                self._acknowledged = frame.received
            case Credit(id=0):
                self.granted += frame.bytes
            case Part():
                message = self.half_sent.setdefault(frame.id, bytearray())
                message += frame.data
                assert len(message) <= self._limits.message
                if frame.last:
                    whole = self._codec.decode_frame_untrusted(bytes(self.half_sent.pop(frame.id)))
                    assert not isinstance(whole, Part | Goodbye | Ack)
