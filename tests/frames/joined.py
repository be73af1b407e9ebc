"""Connections without I/O: feeding bytes, reading what is sent, and joining two of them. For tests of the core."""

from __future__ import annotations

from typing import Any

import msgspec

from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.events import Ended, Event, ItemReceived
from rlm_wire.frames.framing import ReceiveBuffer
from rlm_wire.frames.limits import HEADER_SIZE, Limits
from rlm_wire.frames.schema import Call, Fail, Frame, Goodbye, Reply

VALUE_FIELDS = {Call: "params", Reply: "result", Fail: "data", ItemReceived: "value"}

SMALLEST = {"frame": 66_560, "message": 66_560, "replay": 66_560, "reassembly": 66_560}
"""The smallest limits that a peer may state, calls and item window apart."""


def connection(*, client: bool, codec: str = "msgpack", **limits: int) -> Connection:
    chosen = Limits(**limits)
    return Connection(client=client, codec=codec_named(codec), ours=chosen, theirs=chosen)


def pair(codec: str = "msgpack", **limits: int) -> tuple[Connection, Connection]:
    return connection(client=True, codec=codec, **limits), connection(client=False, codec=codec, **limits)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_SIZE, "big") + body


def encoded(*frames: Any, codec: str = "msgpack") -> bytes:
    """The bytes of `frames`, each with its length."""
    return b"".join(framed(codec_named(codec).encode(frame)) for frame in frames)


def bodies(data: bytes) -> list[bytes]:
    buffer = ReceiveBuffer(1 << 28)
    found = []
    view = memoryview(data)
    while view:
        space = buffer.writable()
        count = min(len(space), len(view))
        space[:count] = view[:count]
        view = view[count:]
        buffer.wrote(count)
        while (body := buffer.next_body_untrusted()) is not None:
            found.append(bytes(body))
    assert not len(buffer), "half a frame was sent"
    return found


def sent(core: Connection, limit: int = 1 << 30) -> list[Frame]:
    """Takes what `core` would send now, decoded."""
    return [core.codec.decode_frame_untrusted(body) for body in bodies(b"".join(core.data_to_send(limit)))]


def receive(core: Connection, data: bytes, chunk: int = 1 << 30) -> list[Event]:
    """Feeds `data` in chunks; the events hold copies of their values, so they stay valid."""
    events: list[Event] = []
    view = memoryview(data)
    while view and not core.ended:
        space = core.writable()
        count = min(len(space), len(view), chunk)
        space[:count] = view[:count]
        view = view[count:]
        events += map(_kept, core.received(count))
    return events


def _kept(event: Event) -> Event:
    field = VALUE_FIELDS.get(type(event))
    return msgspec.structs.replace(event, **{field: bytes(getattr(event, field))}) if field else event


def pump(one: Connection, two: Connection) -> tuple[list[Event], list[Event]]:
    """Carries bytes both ways until neither has anything to send; the events of each."""
    at_one: list[Event] = []
    at_two: list[Event] = []
    while True:
        there, back = b"".join(one.data_to_send(1 << 18)), b"".join(two.data_to_send(1 << 18))
        if not there and not back:
            return at_one, at_two
        at_two += receive(two, there)
        at_one += receive(one, back)


def refused(core: Connection, *frames: Any) -> tuple[str, str]:
    """Code and message of the Goodbye that `frames` earn; nothing else is sent, and the session is over."""
    *_, ended = receive(core, encoded(*frames, codec=core.codec.name))
    assert isinstance(ended, Ended)
    assert core.ended
    (goodbye,) = sent(core)
    assert isinstance(goodbye, Goodbye)
    assert str(ended.error) == goodbye.message
    return goodbye.code, goodbye.message


def accepted(core: Connection, *frames: Any) -> list[Any]:
    events = receive(core, encoded(*frames, codec=core.codec.name))
    assert not core.ended
    return events
