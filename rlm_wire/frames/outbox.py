"""What is sent next. Frames wait here encoded; numbers are given when they leave. Spec §5.

Three lanes: *control* (unnumbered; first), *small* (in order), *bulk* (bodies above LARGE_SIZE, one slice of each call
in turn). Order holds within a call: while a call has something in the bulk lane, everything else of it queues behind.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from rlm_wire.frames.codec import Buffer, Codec
from rlm_wire.frames.credit import SendWindow
from rlm_wire.frames.limits import HEADER_SIZE, LARGE_SIZE, UNSLICED_LIMIT
from rlm_wire.frames.replay import ReplayBuffer

_JOINED_SIZE: Final = 1024


class _Bulk(msgspec.Struct):
    """One body in the bulk lane; `part_id` is 0 until its first slice has left."""

    body: bytes
    opens: bool
    offset: int = 0
    part_id: int = 0


class Outbox:
    """Everything queued for the peer. `size` is the bytes of numbered frames that wait here."""

    def __init__(self, codec: Codec, replay: ReplayBuffer, parts: SendWindow) -> None:
        self._codec = codec
        self._replay = replay
        self._parts = parts
        self._control: list[bytes] = []
        self._last: bytes | None = None
        self._resend: deque[Buffer] = deque()
        self._small: deque[bytes] = deque()
        self._bulk: dict[int, deque[_Bulk]] = {}
        self._turns: deque[int] = deque()
        self._last_part_id = 0
        self.size = 0

    def put_control(self, body: bytes) -> None:
        """Queue an unnumbered frame."""
        self._control.append(body)

    def put_last(self, body: bytes) -> None:
        """Queue the unnumbered frame that follows everything else: an orderly Goodbye."""
        self._last = body

    def drop_all(self) -> None:
        """Forget everything queued: the session has failed."""
        self._control.clear()
        self._resend.clear()
        self._small.clear()
        self._bulk.clear()
        self._turns.clear()
        self.size = 0

    def put(self, call_id: int, body: bytes, *, opens: bool = False) -> None:
        """Queue a numbered frame of a call (0: of none); `opens` marks its Call frame."""
        self.size += len(body)
        waiting = self._bulk.get(call_id)
        if waiting is not None:
            waiting.append(_Bulk(body, opens))
        elif len(body) <= LARGE_SIZE:
            self._small.append(body)
        else:
            self._bulk[call_id] = deque((_Bulk(body, opens),))
            self._turns.append(call_id)

    def withdraw(self, call_id: int) -> bool:
        """Drop what is in the bulk lane of a call and has not begun to leave. True if its Call was among it."""
        waiting = self._bulk.get(call_id)
        if waiting is None:
            return False
        begun = waiting[0] if waiting[0].offset else None
        dropped = [bulk for bulk in waiting if bulk is not begun]
        self.size -= sum(len(bulk.body) for bulk in dropped)
        waiting.clear()
        if begun is not None:
            waiting.append(begun)
        else:
            del self._bulk[call_id]
            self._turns.remove(call_id)
        return any(bulk.opens for bulk in dropped)

    def take(self, limit: int) -> list[Buffer]:
        """Pieces to send now, about `limit` bytes; empty if there is nothing that may be sent."""
        pieces: list[Buffer] = []
        size = 0
        for body in self._control:
            pieces += (len(body).to_bytes(HEADER_SIZE, "big"), body)
        self._control.clear()
        while self._resend and size < limit:
            pieces.append(self._resend.popleft())
            size += len(pieces[-1])
        if self._resend:
            return pieces
        small, replay = self._small, self._replay
        while small and size < limit and replay.has_room(len(small[0])):
            body = small.popleft()
            size += self._send(pieces, body)
            self.size -= len(body)
        if self._turns and size < limit:
            size = self._take_bulk(pieces, size, limit)
        if self._last is not None and size < limit:
            # What is left now waits for a word of the peer, and nobody listens any more.
            pieces += (len(self._last).to_bytes(HEADER_SIZE, "big"), self._last)
            self._last = None
            self.drop_all()
        return pieces

    def _send(self, pieces: list[Buffer], first: bytes, *rest: Buffer) -> int:
        """Number and send a body. A small first piece is joined with the header: cheaper than two pieces to pass on."""
        length = len(first) + sum(map(len, rest))
        header = length.to_bytes(HEADER_SIZE, "big")
        frame = (header + first, *rest) if len(first) <= _JOINED_SIZE else (header, first, *rest)
        pieces += frame
        self._replay.keep(length, *frame)
        return length

    def _take_bulk(self, pieces: list[Buffer], size: int, limit: int) -> int:
        blocked = 0
        while self._turns and size < limit and blocked < len(self._turns):
            call_id = self._turns[0]
            waiting = self._bulk[call_id]
            sent = self._send_slice(pieces, waiting[0])
            if not sent:
                blocked += 1
                self._turns.rotate(-1)
                continue
            blocked = 0
            size += sent
            if waiting[0].offset >= len(waiting[0].body):
                waiting.popleft()
            if waiting:
                self._turns.rotate(-1)
            else:
                self._turns.popleft()
                del self._bulk[call_id]
        return size

    def _send_slice(self, pieces: list[Buffer], bulk: _Bulk) -> int:
        """Send the next slice of `bulk`, or all of it if it needs no slicing; 0 if that must wait."""
        length = len(bulk.body)
        if length <= UNSLICED_LIMIT:
            if not self._replay.has_room(length):
                return 0
            bulk.offset = length
            self.size -= length
            return self._send(pieces, bulk.body)
        if not bulk.part_id and self._parts.left < length:
            return 0  # begun only when the window covers all of it: half-sent messages must not starve each other
        part_id = bulk.part_id or self._last_part_id + 1
        slice_ = memoryview(bulk.body)[bulk.offset : bulk.offset + self._codec.slice_size]
        part = self._codec.encode_part(part_id, bulk.offset + len(slice_) >= length, slice_)
        if not self._replay.has_room(sum(map(len, part))):
            return 0
        if not bulk.part_id:  # not earlier: what has not begun may be withdrawn, and must not have cost anything
            bulk.part_id = self._last_part_id = part_id
            self._parts.spend(length)
        bulk.offset += len(slice_)
        self.size -= len(slice_)
        first, *rest = part
        return self._send(pieces, first, *rest)

    @property
    def frames(self) -> int:
        """Number of small frames that wait."""
        return len(self._small) + len(self._control)

    def unsent(self) -> list[bytes]:
        """Bodies that have not left whole: the peer can do nothing with them."""
        return [*self._small, *(bulk.body for lane in self._bulk.values() for bulk in lane)]

    def resend(self, pieces: list[Buffer]) -> None:
        """On a new link: these go first, before anything new. What was left of the old link's is void."""
        self._control.clear()
        self._resend = deque(pieces)
