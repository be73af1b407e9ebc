"""A whole established connection: any bytes and any nearly valid session, whole and in chunks.

Nothing raises, events and what is sent are well formed, memory stays bounded (see `fuzz.sessions`), and how the stream
was cut makes no difference.
"""

from __future__ import annotations

from typing import Final

from fuzz.choices import WHOLE, Choices
from fuzz.reach import Reach
from fuzz.sessions import SMALL_LIMITS, Act, Session, Step, comparable, script
from rlm_wire.errors import RemoteProtocolError, SessionLost
from rlm_wire.frames.events import Ended
from rlm_wire.frames.limits import Limits

REACH: Final = Reach(
    lines={
        "rlm_wire.frames.connection": 88,
        "rlm_wire.frames.assembly": 80,
        "rlm_wire.frames.credit": 90,
        "rlm_wire.frames.replay": 80,
        "rlm_wire.frames.outbox": 85,
        "rlm_wire.frames.state": 50,
    },
    functions=(
        *(f"Connection._on_{frame}" for frame in (
            "call", "item", "close", "end", "cancel", "credit", "part", "ack", "ping", "pong", "goodbye"
        )),
        *(f"Connection.{act}" for act in (
            "call", "send_item", "close_sending", "reply", "fail", "cancel", "consumed", "goodbye", "end_of_stream"
        )),
        "Connection._late",
        "Connection._acknowledge",
        "Assembly.add_untrusted",
        "ReplayBuffer.acknowledge_untrusted",
        "Outbox.withdraw",
        "Outbox._send_slice",
    ),
    marks=(
        *("Call", "ItemReceived", "Close", "Reply", "Fail", "Cancel", "CreditReceived", "Pong", "Part"),
        *("orderly end", "end of stream", "end refused"),
    ),
)  # fmt: skip

_PREAMBLE: Final = [Step(b"", Act.CALL, 0, {"x": 1})] * 3 + [Step()]
"""Three calls of ours, so that there is something to answer."""


def run(data: bytes) -> None:
    choices = Choices(data)
    mode = choices.byte()
    chunks = choices.byte()
    client, codec = bool(mode & 1), "json" if mode & 2 else "msgpack"
    limits = SMALL_LIMITS if mode & 4 else Limits()
    raw = mode & 8
    steps = [*_PREAMBLE, *([Step(choices.rest()), Step()] if raw else script(choices, codec, 0 if client else 1))]
    whole, chunked = (Session(client=client, codec=codec, limits=limits, chunks=each) for each in (WHOLE, chunks))
    whole.run(steps)
    chunked.run(steps)
    for number, (one, other) in enumerate(zip(whole.transcript, chunked.transcript, strict=False)):
        assert comparable(one) == comparable(other), f"entry {number}: whole {one}, in chunks {other}"
    assert len(whole.transcript) == len(chunked.transcript), "more happens in one way than in the other"
    _mark(whole)


def _mark(session: Session) -> None:
    for entry in session.transcript:
        if not isinstance(entry, Ended):
            REACH.mark(type(entry).__name__)
        elif isinstance(entry.error, RemoteProtocolError):
            REACH.mark("end refused")
        else:
            REACH.mark("end of stream" if isinstance(entry.error, SessionLost) else "orderly end")
