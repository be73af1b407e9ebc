"""The frames of protocol version 1: one Struct each, an array whose first element is the tag. Spec §4.

Optional fields come last and unknown trailing ones are ignored, so either side may be newer. Tags below 16 are the
connection's own and are not numbered; from `Call` on, frames are numbered by counting (spec §7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from rlm_wire.frames.limits import HIGHEST_ID, Limits

if TYPE_CHECKING:
    Value = Any  # sent: anything msgspec encodes
else:
    Value = msgspec.Raw  # received: still encoded, a view into the receive buffer

CallId = Annotated[int, Meta(ge=1, le=HIGHEST_ID)]
Count = Annotated[int, Meta(ge=0, le=HIGHEST_ID)]
Seconds = Annotated[float, Meta(ge=0)]  # also keeps NaN out
Nonce = Annotated[bytes, Meta(min_length=16, max_length=64)]

FIRST_NUMBERED_TAG: Final = 16

NO_ITEMS: Final = 1
"""Flag of a Call: its caller takes no items, so the handler need not send them."""


class Resume(msgspec.Struct, array_like=True, frozen=True):
    """In Hello: the session to go on with, how many of its numbered frames this side has received, and a count of the
    client's attempts to resume it, so that one that was held up on the way cannot displace a later one."""

    session: str
    received: Count
    attempt: Count = 0


class Agreement(msgspec.Struct, array_like=True, frozen=True):
    """What the server chose of the client's offer, and its own limits, features and software."""

    version: int
    codec: str
    features: list[str]
    limits: Limits
    software: str


class Hello(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Client's first frame: what it can speak, best first."""

    versions: list[int]
    codecs: list[str]
    features: list[str]
    limits: Limits
    nonce: Nonce
    software: str
    resume: Resume | None = None


class Challenge(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Server asks for proof of the token, and of the session if it is to be resumed."""

    agreement: Agreement
    nonce: Nonce


class Proof(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """Client's proof of the token (empty where none is needed), and to resume, of the session's secret."""

    mac: Annotated[bytes, Meta(max_length=32)]
    session_mac: Annotated[bytes, Meta(max_length=32)] = b""


class Welcome(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Server opens or resumes the session.

    `mac` is its own proof after a Challenge, else it is empty and `agreement` is here. `secret` is what a new session
    without a token can be resumed by.
    """

    session: str
    received: Count = 0
    mac: bytes = b""
    agreement: Agreement | None = None
    secret: bytes = b""


class Goodbye(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """Orderly end; `code` is "" when all is well, else one of the canonical codes."""

    code: str
    message: str


class Ping(msgspec.Struct, array_like=True, tag=6, frozen=True):
    token: Count


class Pong(msgspec.Struct, array_like=True, tag=7, frozen=True):
    token: Count


class Ack(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """Numbered frames received so far in this session."""

    received: Count


class Call(msgspec.Struct, array_like=True, tag=16, frozen=True):
    """Start a call. `deadline`: seconds left, None: none. `scope`: which cell it came from, if any."""

    id: CallId
    method: str
    params: Value
    scope: str | None = None
    deadline: Seconds | None = None
    flags: int = 0


class Item(msgspec.Struct, array_like=True, tag=17, frozen=True):
    id: CallId
    value: Value


class Close(msgspec.Struct, array_like=True, tag=18, frozen=True):
    """No more items from this side."""

    id: CallId


class Reply(msgspec.Struct, array_like=True, tag=19, frozen=True):
    id: CallId
    result: Value


class Fail(msgspec.Struct, array_like=True, tag=20, frozen=True):
    id: CallId
    code: str
    message: str
    data: Value = msgspec.field(default_factory=msgspec.Raw)
    retryable: bool = False


class Cancel(msgspec.Struct, array_like=True, tag=21, frozen=True):
    """Stop the work; it is still answered, by a Reply (partial result) or a Fail."""

    id: CallId
    reason: str = ""


class Credit(msgspec.Struct, array_like=True, tag=22, frozen=True):
    """`bytes` more may be sent: of a call's items, or (id 0) of Parts."""

    id: Count
    bytes: Annotated[int, Meta(ge=1, le=HIGHEST_ID)]


class Part(msgspec.Struct, array_like=True, tag=23, frozen=True):
    """A slice of a body too large for one frame; the slices of one `id` are in order."""

    id: CallId
    last: bool
    data: memoryview


HandshakeFrame = Hello | Challenge | Proof | Welcome | Goodbye
Frame = Goodbye | Ping | Pong | Ack | Call | Item | Close | Reply | Fail | Cancel | Credit | Part
