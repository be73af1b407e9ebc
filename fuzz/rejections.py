"""Accepted rejections, one a line, each with why. A rejection that is not listed is a finding.

So a new way to refuse is a decision that somebody looks at, and an internal error dressed up as a refusal shows.
"""

from __future__ import annotations

import re
from typing import Final

from rlm_wire.errors import AuthenticationError, CallError, HandshakeError, RemoteProtocolError, SessionLost, WireError

_LISTED: Final[dict[type[WireError], dict[str, str]]] = {
    RemoteProtocolError: {
        r"frame of \d+ bytes refused": "a length of zero or beyond the limit",
        r"this is not rlm-wire: ": "another protocol on the stream",
        r"no preface in \d+ bytes; they begin ": "a banner without an end",
        r"a terminal or text filter is in the path \(": "the preface arrived changed",
        r"frame refused: nested deeper than 64 levels$": "a nesting bomb",
        r"frame refused: Expected `": "a field of another type, or a frame of too few fields",
        r"frame refused: Invalid value ": "an unknown tag",
        r"frame refused: Invalid UTF-8": "text that is none",
        r"frame refused: Invalid base64 encoded string": "bytes in JSON that are none",
        r"frame refused: Invalid extension": "a MessagePack extension where a value is decoded",
        r"frame refused: Input data was truncated": "a body that ends early",
        r"frame refused: (MessagePack data|JSON) is malformed: ": "not the codec at all",
        r"frame refused: Number out of range": "JSON numbers without end",
        r"call id \d+ (has this side's parity|is in use)$": "a Call with an id that it may not have",
        r"(Reply|Fail|Item) for call \d+, which was never made$": "an answer to nothing",
        r"Cancel of call \d+, which is not the peer's own$": "only the caller cancels",
        r"call \d+: cannot receive an? (item|close) when ": "more after the end of a direction",
        r"call \d+: item beyond the window$": "sending without credit",
        r"credit beyond any window$": "more credit than numbers are exact for",
        r"Ack of \d+ frames: \d+ sent, \d+ acknowledged$": "acknowledging what was not sent, or less than before",
        r"message beyond \d+ bytes refused$": "Parts of too large a message",
        r"Part beyond the window$": "Parts without credit",
        r"empty Part$": "a Part that costs nothing",
        r"too many messages in Parts at once$": "many beginnings without an end",
        r"\w+ must not be sliced$": "a connection's own frame, or a Part, in Parts",
        r"the peer sends and does not read$": "answers without end",
    },
    HandshakeError: {
        r"(frame of \d+ bytes refused|this is not rlm-wire|no preface in|a terminal or text filter is)": "as above",
        r"handshake refused: ": "as above, in JSON",
        r"(Hello|Challenge|Proof|Welcome) is not allowed when [a-z ]+$": "a frame out of order",
        r"the server refused: ": "its Goodbye",
        r"the client left: ": "its Goodbye",
        r"Proof refused: a MAC has 32 bytes$": "no MAC at all",
        r"there is no such session, or not any more$": "a session that is not held",
        r"Ack of more frames than were sent$": "more frames than a session to be resumed had",
        r"the session was agreed on other terms$": "a session to be resumed in another way than it was begun",
        r"the server resumed another session than it was asked for$": "a false server",
        r"Welcome without an agreement$": "nothing to go on",
        r"the server chose version -?\d+ and codec ": "what was not offered",
        r"the (server|client)'s limits? ": "limits that nothing can be sent within",
        r"no common (protocol version|codec): this side speaks \[": "a peer from another time",
    },
    AuthenticationError: {
        r"the server asks for a token: ": "the client has none",
        r"the server does not know the token$": "a false server, or a man in the middle",
        r"the server asked for no token on a stream that is not private$": "a false server",
        r"this server has no token, so it takes only ": "a server without a token",
        r"the server does not know the session$": "a false server, or one with another secret",
        r"the server resumed a session without proof$": "a false server",
        r"authentication failed$": "a wrong token: no more is said",
        r"the server refused: ": "its Goodbye",
    },
    SessionLost: {
        r"the peer ended the session: ": "its Goodbye with a code",
        r"the connection ended( in the middle of a frame \(\d+ bytes of it came\))?$": "the end of the stream",
    },
    CallError: {
        r"[\w.]+: Expected `": "a field of another type, or beyond its bounds",
        r"[\w.]+: Object (contains|missing) ": "a missing field",
        r"[\w.]+: Invalid (value|enum value) ": "not one of the literals",
        r"[\w.]+: Invalid UTF-8": "text that is none",
        r"[\w.]+: Invalid base64 encoded string": "bytes in JSON that are none",
        r"[\w.]+: Input data was truncated": "a value that ends early",
        r"[\w.]+: (MessagePack data|JSON) is malformed: ": "not the codec at all",
        r"[\w.]+: Number out of range": "JSON numbers without end",
        r"the value cannot be sent: ": "a value that no codec takes",
        r"the message has \d+ bytes, the limit is \d+: ": "too large a value",
        r"\d+ calls are in flight already$": "too many calls at once",
    },
}
_PATTERNS: Final = {kind: re.compile("|".join(f"(?:{line})" for line in lines)) for kind, lines in _LISTED.items()}


class UnlistedRejection(AssertionError):
    """The input was neither accepted nor refused for a listed reason."""


def check_listed(error: WireError) -> None:
    """UnlistedRejection unless `error` is one of the accepted ones."""
    pattern = _PATTERNS.get(type(error))
    if pattern is None or not pattern.match(str(getattr(error, "message", error))):
        raise UnlistedRejection(repr(error)) from error
