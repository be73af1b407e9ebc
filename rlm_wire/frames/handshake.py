"""From the first byte of a stream to an established session, both roles. Spec §2 and §3.

    client                                server
      preface, Hello ────────────────────▶
                     ◀──────────────────── preface, Challenge      (only where a token is needed)
      Proof ─────────────────────────────▶
                     ◀──────────────────── Welcome

Nonces and the session id are passed in; nothing here reads a clock, so the deadline is the caller's. A handshake never
raises for what the peer does: `outcome` becomes an Established or a HandshakeError, and `data_to_send` holds what the
peer should still hear. Frames are JSON until Welcome; bytes behind it stay in `buffer` for the Connection.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rlm_wire.errors import AuthenticationError, HandshakeError, RemoteProtocolError
from rlm_wire.frames.codec import CODEC_NAMES, decode_handshake_untrusted, encode_handshake
from rlm_wire.frames.framing import Preface, ReceiveBuffer, readable, show
from rlm_wire.frames.limits import HANDSHAKE_FRAME_LIMIT, HEADER_SIZE, PREFACE, PROTOCOL_VERSION, Limits
from rlm_wire.frames.schema import Agreement, Challenge, Goodbye, HandshakeFrame, Hello, Proof, Resume, Welcome
from rlm_wire.frames.state import Link, next_link_state

_LAST_WORDS: Final = 256
"""Bytes shown of the end of what a peer sent before it left."""

VERSIONS: Final = [PROTOCOL_VERSION]


class Side(msgspec.Struct, frozen=True):
    """What one side brings to a handshake. `token` is needed where the stream is not `private`; empty is none."""

    software: str
    nonce: bytes
    features: list[str] = []
    limits: Limits = Limits()
    codecs: list[str] = msgspec.field(default_factory=lambda: list(CODEC_NAMES))
    token: bytes | None = None
    private: bool = False
    channel_binding: bytes = b""

    def __repr__(self) -> str:  # the token must not reach a log
        return f"Side({self.software!r}, private={self.private})"


class Established(msgspec.Struct, frozen=True):
    """A handshake's good end: what both sides will use, and what the peer said of itself."""

    version: int
    codec: str
    limits: Limits
    features: list[str]
    software: str
    session: str
    received: int = 0
    resume: Resume | None = None


class Handshake:
    """What both roles share: receiving, refusing, proving."""

    def __init__(self, side: Side, state: Link, *, skip_banner: bool = False) -> None:
        self.outcome: Established | HandshakeError | None = None
        self.buffer = ReceiveBuffer(HANDSHAKE_FRAME_LIMIT)
        self._side = side
        self._state = state
        self._preface = Preface(skip_banner=skip_banner)
        self._outgoing: list[bytes] = [PREFACE]
        self._hello = b""
        self._challenge = b""

    @property
    def banner(self) -> bytes:
        """What came before the preface (a stdio client skips it)."""
        return self._preface.banner

    def data_to_send(self) -> list[bytes]:
        """Pieces to write next; empty if the peer is to speak."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def received(self, count: int) -> None:
        """Take note of `count` bytes in `buffer.writable()`; look at `outcome` and `data_to_send` afterwards."""
        self.buffer.wrote(count)
        try:
            if self._preface.found or self._preface.look_untrusted(self.buffer):
                while self.outcome is None and (body := self.buffer.next_body_untrusted()) is not None:
                    copy = bytes(body)
                    frame = decode_handshake_untrusted(copy)
                    self._state = next_link_state(self._state, frame)
                    self._take(frame, copy)
        except RemoteProtocolError as error:
            self._refuse(HandshakeError(str(error)), error.code)

    def end_of_stream(self) -> HandshakeError:
        """The error to raise when the stream ended before the outcome."""
        seen = self._preface.banner + self.buffer.peek()
        what = f"after {show(seen)}" if seen else "before it sent anything"
        if len(seen) > _LAST_WORDS:  # what a launcher says last says why
            what += f" and at last {bytes(seen[-_LAST_WORDS:])!r}"
        if not seen and not self._side.private:
            what += "; perhaps its port is for TLS (tls://), or for something else"
        return HandshakeError(f"the peer closed the connection during the handshake, {what}")

    def _take(self, frame: HandshakeFrame, body: bytes) -> None:
        raise NotImplementedError

    def _send(self, frame: HandshakeFrame) -> bytes:
        body = encode_handshake(frame)
        self._outgoing += (len(body).to_bytes(HEADER_SIZE, "big"), body)
        return body

    def _refuse(self, error: HandshakeError, code: str = "") -> None:
        self.outcome = error
        self._state = Link.REFUSED
        self._send(Goodbye(code or error.code, str(error)))

    def _mac(self, role: bytes) -> bytes:
        """Proof that `role` knows the token, for this handshake on this stream only (spec §3.3)."""
        import hmac  # here, for hashlib costs milliseconds that private streams need not pay

        assert self._side.token is not None
        message = b"rlm-wire/1 " + role
        for part in (self._hello, self._challenge, self._side.channel_binding):
            message += len(part).to_bytes(4, "big") + part
        return hmac.digest(self._side.token, message, "sha256")

    def _is_proof(self, mac: bytes, role: bytes) -> bool:
        import hmac

        return hmac.compare_digest(mac, self._mac(role))


class ClientHandshake(Handshake):
    """The connecting side; `skip_banner` on stdio, where a login shell may speak first."""

    def __init__(self, side: Side, *, skip_banner: bool = False, resume: Resume | None = None) -> None:
        super().__init__(side, Link.HELLO_SENT, skip_banner=skip_banner)
        self._agreement: Agreement | None = None
        hello = Hello(VERSIONS, side.codecs, side.features, side.limits, side.nonce, side.software, resume)
        self._hello = self._send(hello)

    def _take(self, frame: HandshakeFrame, body: bytes) -> None:
        if isinstance(frame, Challenge):
            if not self._side.token:
                return self._refuse(AuthenticationError("the server asks for a token: pass token=, or --token-file"))
            self._agreement = frame.agreement
            self._challenge = body
            self._send(Proof(self._mac(b"client")))
        elif isinstance(frame, Welcome):
            self._take_welcome(frame)
        elif isinstance(frame, Goodbye):
            error = AuthenticationError if frame.code == "unauthenticated" else HandshakeError
            self.outcome = error(f"the server refused: {readable(frame.message or frame.code)}")
        return None

    def _take_welcome(self, welcome: Welcome) -> None:
        if self._challenge:
            if not self._is_proof(welcome.mac, b"server"):
                return self._refuse(AuthenticationError("the server does not know the token"))
        elif not self._side.private:
            return self._refuse(AuthenticationError("the server asked for no token on a stream that is not private"))
        agreement = self._agreement or welcome.agreement
        if agreement is None:
            return self._refuse(HandshakeError("Welcome without an agreement"))
        if agreement.version not in VERSIONS or agreement.codec not in self._side.codecs:
            return self._refuse(
                HandshakeError(f"the server chose version {agreement.version} and codec {agreement.codec[:32]!r}")
            )
        if problem := agreement.limits.problem():
            return self._refuse(HandshakeError(f"the server's {problem}"))
        self.outcome = Established(
            agreement.version,
            agreement.codec,
            agreement.limits,
            agreement.features,
            agreement.software,
            welcome.session,
            welcome.received,
        )
        return None


class ServerHandshake(Handshake):
    """The listening side; `session` is the id that a new session would get."""

    def __init__(self, side: Side, *, session: str) -> None:
        super().__init__(side, Link.EXPECTING_HELLO)
        self._session = session
        self._offer: Hello | None = None
        self._agreement: Agreement | None = None

    def _take(self, frame: HandshakeFrame, body: bytes) -> None:
        if isinstance(frame, Hello):
            self._take_hello(frame, body)
        elif isinstance(frame, Proof):
            if self._is_proof(frame.mac, b"client"):
                self._welcome(mac=self._mac(b"server"), agreement=None)
            else:
                self._refuse(AuthenticationError("authentication failed"))
        elif isinstance(frame, Goodbye):
            self.outcome = HandshakeError(f"the client left: {readable(frame.message or frame.code)}")

    def _take_hello(self, hello: Hello, body: bytes) -> None:
        side = self._side
        version = max((v for v in hello.versions if v in VERSIONS), default=None)
        codec = next((c for c in hello.codecs if c in side.codecs), None)
        if version is None:
            return self._refuse(
                HandshakeError(f"no common protocol version: this side speaks {VERSIONS}"), "unimplemented"
            )
        if codec is None:
            return self._refuse(HandshakeError(f"no common codec: this side speaks {side.codecs}"), "unimplemented")
        if problem := hello.limits.problem():
            return self._refuse(HandshakeError(f"the client's {problem}"))
        self._offer = hello
        self._hello = body
        self._agreement = Agreement(version, codec, side.features, side.limits, side.software)
        if side.private:
            self._state = Link.OPEN
            return self._welcome(mac=b"", agreement=self._agreement)
        if not side.token:
            return self._refuse(AuthenticationError("this server has no token and accepts private streams only"))
        self._challenge = self._send(Challenge(self._agreement, side.nonce))
        return None

    def _welcome(self, *, mac: bytes, agreement: Agreement | None) -> None:
        assert self._offer is not None
        assert self._agreement is not None
        self._send(Welcome(self._session, 0, mac, agreement))
        offer, chosen = self._offer, self._agreement
        self.outcome = Established(
            chosen.version,
            chosen.codec,
            offer.limits,
            offer.features,
            offer.software,
            self._session,
            resume=offer.resume,
        )
