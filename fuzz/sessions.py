"""A session as a script of steps, made from choices: what the peer sends, and what our side does in between.

The same script can be run with its bytes whole or in chunks: `Session.transcript` must come out the same.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Any, Final, get_args

import msgspec

from fuzz.choices import Choices, chunk_sizes
from fuzz.conduct import CallSeen, Conduct
from fuzz.programs import ENCODE, damaged, frame_body, value
from fuzz.rejections import check_listed
from fuzz.retained import retained
from rlm_wire.errors import CallError, Code
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.events import Ended
from rlm_wire.frames.limits import HEADER_SIZE, Limits
from rlm_wire.frames.schema import Ack, Credit, Frame, Part

_DECODE: Final = {"msgpack": msgspec.msgpack.Decoder(Frame).decode, "json": msgspec.json.Decoder(Frame).decode}

SMALL_LIMITS: Final = Limits(
    frame=66_560, message=140_000, replay=140_000, reassembly=150_000, calls=6, item_window=4_000
)
_MOST_STEPS: Final = 150
_MOST_BYTES: Final = 1_000_000


class Act(enum.IntEnum):
    """What our side may do."""

    CALL = 0
    SEND_ITEM = 1
    CLOSE_SENDING = 2
    REPLY = 3
    FAIL = 4
    CANCEL = 5
    CONSUME = 6
    CONSUME_ALL = 7
    SEND = 8
    PING = 9
    GOODBYE = 10


class Step(msgspec.Struct, frozen=True):
    """Bytes that arrive, or else an act on the call number `which` of those it can be done to."""

    heard: bytes = b""
    act: Act = Act.SEND
    which: int = 0
    value: Any = None


def script(choices: Choices, codec: str, peer: int) -> list[Step]:
    """Steps with a peer, of call id parity `peer`, who mostly keeps the rules. Frames in a row come together."""
    steps: list[Step] = []
    arriving = bytearray()
    begun: deque[bytes] = deque()  # Parts whose message has begun and that have not arrived
    total = parts = 0
    while choices.left and len(steps) < _MOST_STEPS and total < _MOST_BYTES:
        kind = choices.byte() % 16
        if kind < 6:
            frames = _framed(damaged(frame_body(choices, codec, peer), choices))
        elif kind == 6:
            parts += 1
            begun += _sliced(choices, codec, peer, parts)
            frames = begun.popleft()
        elif kind == 7:
            frames = begun.popleft() if begun else b""
        elif kind == 8:
            frames = _frames_again(choices, codec, peer)
        else:
            if arriving:
                steps.append(Step(bytes(arriving)))
                arriving.clear()
            steps.append(_act(choices))
            continue
        arriving += frames
        total += len(frames)
    return [*steps, Step(bytes(arriving)), Step()]


def _frames_again(choices: Choices, codec: str, peer: int) -> bytes:
    """One frame, many times: what is counted gets large."""
    return _framed(frame_body(choices, codec, peer)[:100]) * choices.pick((2, 5, 200, 1_100))


def _act(choices: Choices) -> Step:
    act = Act(choices.byte() % 10)
    if act is Act.PING and choices.byte() >= 240:
        act = Act.GOODBYE
    needs_value = act in (Act.CALL, Act.SEND_ITEM, Act.REPLY, Act.FAIL)
    return Step(b"", act, choices.byte(), value(choices) if needs_value else None)


def _sliced(choices: Choices, codec: str, peer: int, part_id: int) -> list[bytes]:
    body = frame_body(choices, codec, peer)
    size = len(body) // (choices.byte() % 3 + 1) + 1
    slices = [body[at : at + size] for at in range(0, len(body), size)]
    return [_framed(ENCODE[codec](Part(part_id, each is slices[-1], memoryview(each)))) for each in slices]


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_SIZE, "big") + body


class Session:
    """One established connection and its owner, who keeps the rules; the peer need not."""

    def __init__(self, *, client: bool, codec: str, limits: Limits, chunks: int) -> None:
        self._codec = codec_named(codec)
        self._core = Connection(client=client, codec=self._codec, ours=limits, theirs=limits)
        self.conduct = Conduct(client=client, codec=self._codec, limits=limits)
        self._sizes = chunk_sizes(chunks)
        self._limits = limits
        self._acts = self._own = self._counted = self._frames = 0
        self._stream = bytearray()
        self._heard_at_check = 2_000
        self.transcript: list[Any] = []

    def run(self, steps: list[Step]) -> None:
        for step in steps:
            if step.heard:
                self._hear(step.heard)
            elif not self._core.ended or step.act is Act.SEND:
                self._do(step)
        self._end()

    def _hear(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self._core.ended:
            space = self._core.writable()
            assert len(space) > 0, "no space to receive into"
            count = min(next(self._sizes), len(space), len(data) - at)
            space[:count] = data[at : at + count]
            at += count
            self._stream += data[at - count : at]
            for event in self._core.received(count):
                kept = _kept(event)
                self.conduct.saw(kept)
                self.transcript.append(kept)
        assert self.conduct.ended or not self._core.ended, "ended without saying so"
        if len(self._stream) > 2 * self._heard_at_check:
            self._check_memory()

    def _do(self, step: Step) -> None:
        self._acts += 1
        try:
            self._act(step)
        except CallError as error:  # what cannot be sent: only the act fails
            check_listed(error)
            self.transcript.append(str(error))

    def _act(self, step: Step) -> None:
        core, call = self._core, self._choose(step)
        match step.act:
            case Act.SEND:
                self._send(step.which * 1_000 or 1 << 30)
            case Act.PING:
                core.ping(step.which)
            case Act.GOODBYE:
                core.goodbye("unavailable", "leaving")
                self.conduct.ended = True
            case Act.CALL:
                self.conduct.opened(core.call("calc.add", step.value, deadline=step.which / 4 or None))
            case _ if call is None:
                pass
            case Act.SEND_ITEM:
                if core.may_send_item(call.id):
                    core.send_item(call.id, step.value)
            case Act.CLOSE_SENDING:
                core.close_sending(call.id)
                call.sending = False
            case Act.REPLY:
                core.reply(call.id, step.value)
                del self.conduct.calls[call.id]
            case Act.FAIL:
                core.fail(call.id, CallError(_CODES[step.which % len(_CODES)], "said \ud800", data=step.value))
                del self.conduct.calls[call.id]
            case Act.CANCEL:
                call.sending = False
                if core.cancel(call.id, "enough"):
                    del self.conduct.calls[call.id]
            case Act.CONSUME | Act.CONSUME_ALL:
                call.has_consumed = True
                for _ in range(len(call.items) if step.act is Act.CONSUME_ALL else 1):
                    core.consumed(call.id, call.items.popleft())

    def _choose(self, step: Step) -> CallSeen | None:
        """The call that is acted on, if there is one that this may be done to."""
        able = [call for call in self.conduct.calls.values() if _may(call, step.act)]
        return able[step.which % len(able)] if able else None

    def _send(self, limit: int) -> None:
        sent = b"".join(self._core.data_to_send(limit))
        self._own += len(sent)
        # How Acks are grouped may depend on chunks, so they are checked where they are sent, and not compared.
        self.transcript += [_kept(frame) for frame in self.conduct.sent(sent) if not isinstance(frame, Ack)]

    def _check_memory(self) -> None:
        """A peer makes us hold a buffer for one frame, what it has really sent, and so much for each frame of it."""
        while (end := _next_frame(self._stream, self._counted)) <= len(self._stream):
            self._counted = end
            self._frames += 1
        self._heard_at_check = max(len(self._stream), self._heard_at_check)
        held = retained(self._core, shared=(self._codec,))
        own = self._own + self._core.queued
        allowed = (
            30_000 + self._limits.frame + 3 * len(self._stream) + 600 * self._frames + 2 * own + 2_000 * self._acts
        )
        assert held <= allowed, f"{held} bytes are held after {len(self._stream)} were received and {own} queued"

    def _end(self) -> None:
        self._check_memory()
        self._send(1 << 30)
        self._check_nothing_is_stuck()
        if not self._core.ended:
            expected = _bytes_of_whole_messages(self._stream, self._codec.name) - self.conduct.not_consumed()
            assert self.conduct.granted == expected, f"Parts: {self.conduct.granted} bytes granted, not {expected}"
        if not self._core.ended:
            assert self._core.fates().keys() <= {call.id for call in self.conduct.calls.values() if call.ours}
            self.transcript.append(_kept(self._core.end_of_stream()))

    def _check_nothing_is_stuck(self) -> None:
        """Once the peer has taken everything, everything that was queued goes out."""
        encode = ENCODE[self._codec.name]
        while not self._core.ended and not _is_torn(self._stream) and (self._core.queued or self.conduct.half_sent):
            before = self.conduct.numbered
            self._hear(_framed(encode(Credit(0, 1 << 24))) + _framed(encode(Ack(before))))
            self._send(1 << 30)
            assert self.conduct.numbered > before or self._core.ended, f"{self._core.queued} bytes are stuck"


_CODES: Final = get_args(Code)


def _bytes_of_whole_messages(stream: bytearray, codec: str) -> int:
    """Bytes of all messages that came in Parts, without those of which the last Part is missing."""
    total = at = 0
    begun: dict[int, int] = {}
    while (end := _next_frame(stream, at)) <= len(stream) and at < len(stream):
        frame = _DECODE[codec](stream[at + HEADER_SIZE : end])
        if isinstance(frame, Part):
            begun[frame.id] = begun.get(frame.id, 0) + len(frame.data)
            total += begun.pop(frame.id) if frame.last else 0
        at = end
    return total


def _is_torn(stream: bytearray) -> bool:
    """Does `stream` end inside a frame?"""
    at = 0
    while at < len(stream):
        at = _next_frame(stream, at)
    return at > len(stream)


def _next_frame(stream: bytearray, at: int) -> int:
    return at + HEADER_SIZE + int.from_bytes(stream[at : at + HEADER_SIZE], "big")


def _may(call: CallSeen, act: Act) -> bool:
    match act:
        case Act.SEND_ITEM | Act.CLOSE_SENDING:
            return call.sending
        case Act.REPLY | Act.FAIL:
            return not call.ours
        case Act.CANCEL:
            return call.ours
        case Act.CONSUME | Act.CONSUME_ALL:
            return bool(call.items)
        case _:
            return False


def _kept(event: Any) -> Any:
    """`event` with copies of its values, which else are valid only until more is received."""
    if isinstance(event, Ended):
        return event
    raw = {
        field: msgspec.Raw(bytes(getattr(event, field)))
        for field in event.__struct_fields__
        if isinstance(getattr(event, field), msgspec.Raw)
    }
    return msgspec.structs.replace(event, **raw)


def comparable(entry: Any) -> Any:
    """An entry of a transcript in a form that equals its like."""
    if isinstance(entry, Ended):
        return ("Ended", repr(entry.error))
    if isinstance(entry, msgspec.Struct):
        fields = (getattr(entry, field) for field in entry.__struct_fields__)
        return (type(entry).__name__, *(bytes(each) if isinstance(each, msgspec.Raw) else each for each in fields))
    return entry
