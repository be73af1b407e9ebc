"""Every error the library raises, and nothing else.

::

    WireError                     anything that went wrong on the wire; catch this to catch all
    ├── CallError                 one call failed; the connection lives on. `code` is one of CODES
    ├── SessionLost               the other side is gone, and with it every open call
    ├── TransportError            the byte stream could not be opened, or broke
    │   └── LaunchError           a stdio command ended before it spoke the protocol
    ├── HandshakeError            both sides speak, but cannot agree
    │   └── AuthenticationError   the token is wrong or missing
    └── ProtocolError
        ├── LocalProtocolError    our own caller misused the core: a bug on this side
        └── RemoteProtocolError   the peer's bytes break the specification: a bug, or an enemy, over there

Each class carries the wire code that a peer is told (spec §9). Nothing here is ever rebuilt from a class
name that a peer sent: a `Fail` frame becomes a `CallError` whose `code` is checked against `CODES`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

Code = Literal[
    "invalid_argument",
    "not_found",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "cancelled",
    "deadline_exceeded",
    "unavailable",
    "unimplemented",
    "internal",
    "unauthenticated",
]
CODES: Final[frozenset[str]] = frozenset(get_args(Code))

Fate = Literal["not_sent", "maybe_executed", "executed"]


class WireError(Exception):
    """Base of every error of this library; `code` is the canonical RPC code a peer would be told."""

    code: Code = "internal"


class CallError(WireError):
    """One call failed, here or at the peer. Handlers raise it to choose what their caller sees.

    `message` is for people and says what to do; `data` is any JSON-like value, for programs; `retryable` says that
    the same call may succeed later without a change.
    """

    def __init__(self, code: Code, message: str, *, data: Any = None, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class SessionLost(WireError):
    """The session with the peer has ended. `fate` says what became of this call.

    `not_sent`: it has not left whole, so it cannot have run. `executed`: its handler has run, at least in part, for it
    sent items or took some. `maybe_executed`: anything else.
    """

    code: Code = "unavailable"

    def __init__(self, message: str, *, fate: Fate = "maybe_executed") -> None:
        super().__init__(message)
        self.fate: Fate = fate


class TransportError(WireError):
    """A byte stream could not be opened, or it broke. The message names the address and the reason."""

    code: Code = "unavailable"


class LaunchError(TransportError):
    """A `stdio:` command ended before the handshake: `exit_code` (negative: the signal) and the tail of `stderr`."""

    def __init__(self, message: str, *, exit_code: int | None = None, stderr: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr = stderr


class HandshakeError(WireError):
    """The peers could not agree: no common version or codec, silence, or not this protocol at all.

    `refused` is True if one side has decided so, False if another attempt may fare better.
    """

    code: Code = "failed_precondition"

    def __init__(self, message: str, *, refused: bool = True) -> None:
        super().__init__(message)
        self.refused = refused


class AuthenticationError(HandshakeError):
    """The shared token is missing or wrong. Deliberately says no more than that."""

    code: Code = "unauthenticated"


class ProtocolError(WireError):
    """Abstract: the rules of the protocol were broken."""


class LocalProtocolError(ProtocolError):
    """The protocol core was used against its rules by its own side."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the specification. `code` is what it is told in Goodbye before the connection ends."""

    code: Code = "invalid_argument"

    def __init__(self, message: str, *, code: Code = "invalid_argument") -> None:
        super().__init__(message)
        self.code = code
