"""From the first byte of a stream to an established session, both roles. Spec §2 and §3.

    client                                server
      preface, Hello ────────────────────▶
                     ◀──────────────────── preface, Challenge      (only where a token is needed)
      Proof ─────────────────────────────▶
                     ◀──────────────────── Welcome

A client that had a session may ask to resume it: Hello names it, and both prove, behind a Challenge in any case, that
they know its secret (spec §7.3).

Nonces, secrets and the session id are passed in; nothing here reads a clock, so the deadline is the caller's. A
handshake never raises for what the peer does: `outcome` becomes an Established or a HandshakeError, and `data_to_send`
holds what the peer should still hear. Frames are JSON until Welcome; bytes behind it stay in `buffer` for the
Connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

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
MAC_SIZE: Final = 32


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
    """A handshake's good end: what both sides will use, and what the peer said of itself.

    `limits` are the peer's. `secret` is what proves the session later. `received`: numbered frames of this session that
    the peer has, 0 in a new one; `resumed` tells which it is.
    """

    version: int
    codec: str
    limits: Limits
    features: list[str]
    software: str
    session: str
    secret: bytes = b""
    received: int = 0
    resumed: bool = False

    def __repr__(self) -> str:  # the secret must not reach a log
        return f"Established({self.session!r}, {self.software!r}, {self.codec}, resumed={self.resumed})"


class Resumption(msgspec.Struct, frozen=True):
    """A client's wish to go on with the session that `established` began; the rest as in `Resume`."""

    established: Established
    received: int
    attempt: int


class Held(Protocol):
    """A session that a server holds, as its handshakes see it. `limits` are those in force."""

    @property
    def secret(self) -> bytes: ...

    @property
    def version(self) -> int: ...

    @property
    def codec(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    def take_over(self, resume: Resume) -> int:
        """The client has proved the session: its old link is over, at once. Returns the frames received on it.

        Raises RemoteProtocolError, and leaves all as it is, if `resume` cannot be right or comes too late.
        """
        ...


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
            self._refuse(HandshakeError(str(error), refused=False), error.code)

    def end_of_stream(self) -> HandshakeError:
        """The error to raise when the stream ended before the outcome."""
        seen = self._preface.banner + self.buffer.peek()
        what = f"after {show(seen)}" if seen else "before it sent anything"
        if len(seen) > _LAST_WORDS:  # what a launcher says last says why
            what += f" and at last {bytes(seen[-_LAST_WORDS:])!r}"
        if not seen and not self._side.private:
            what += "; perhaps its port is for TLS (tls://), or for something else"
        return HandshakeError(f"the peer closed the connection during the handshake, {what}", refused=False)

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

    def _mac(self, role: bytes, key: bytes | None = None) -> bytes:
        """Proof that `role` knows `key` (None: the token), for this handshake on this stream only (spec §3.3)."""
        import hmac  # here, for hashlib costs milliseconds that private streams need not pay

        key = self._side.token if key is None else key
        assert key
        message = b"rlm-wire/1 " + role
        for part in (self._hello, self._challenge, self._side.channel_binding):
            message += len(part).to_bytes(4, "big") + part
        return hmac.digest(key, message, "sha256")

    def _is_proof(self, mac: bytes, role: bytes, key: bytes | None = None) -> bool:
        import hmac

        return hmac.compare_digest(mac, self._mac(role, key))


class ClientHandshake(Handshake):
    """The connecting side; `skip_banner` on stdio, where a login shell may speak first."""

    def __init__(self, side: Side, *, skip_banner: bool = False, resume: Resumption | None = None) -> None:
        super().__init__(side, Link.HELLO_SENT, skip_banner=skip_banner)
        self._agreement: Agreement | None = None
        self._before = resume.established if resume else None
        wish = Resume(resume.established.session, resume.received, resume.attempt) if resume else None
        hello = Hello(VERSIONS, side.codecs, side.features, side.limits, side.nonce, side.software, wish)
        self._hello = self._send(hello)

    def _take(self, frame: HandshakeFrame, body: bytes) -> None:
        if isinstance(frame, Challenge):
            self._take_challenge(frame, body)
        elif isinstance(frame, Welcome):
            self._take_welcome(frame)
        elif isinstance(frame, Goodbye):
            error = AuthenticationError if frame.code == "unauthenticated" else HandshakeError
            self.outcome = error(f"the server refused: {readable(frame.message or frame.code)}")

    def _take_challenge(self, challenge: Challenge, body: bytes) -> None:
        if not self._side.token and not (self._before and self._side.private):
            return self._refuse(AuthenticationError("the server asks for a token: pass token=, or --token-file"))
        self._agreement = challenge.agreement
        self._challenge = body
        mac = self._mac(b"client") if self._side.token else b""
        self._send(Proof(mac, self._mac(b"resume", self._before.secret) if self._before else b""))
        return None

    def _take_welcome(self, welcome: Welcome) -> None:
        before = self._before
        if self._challenge:
            role, key = (b"resumed", before.secret) if before else (b"server", None)
            if not self._is_proof(welcome.mac, role, key):
                return self._refuse(
                    AuthenticationError(f"the server does not know the {'session' if key else 'token'}")
                )
        elif before:
            return self._refuse(AuthenticationError("the server resumed a session without proof"))
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
        if before and not self._is_same(agreement, welcome, before):
            return self._refuse(HandshakeError("the server resumed another session than it was asked for"))
        self.outcome = Established(
            agreement.version,
            agreement.codec,
            agreement.limits,
            agreement.features,
            agreement.software,
            welcome.session,
            before.secret if before else self._mac(b"session") if self._challenge else welcome.secret,
            welcome.received,
            before is not None,
        )
        return None

    def _is_same(self, agreement: Agreement, welcome: Welcome, before: Established) -> bool:
        ours = self._side.limits
        now = (welcome.session, agreement.version, agreement.codec, ours.lowest(agreement.limits))
        return now == (before.session, before.version, before.codec, ours.lowest(before.limits))


class ServerHandshake(Handshake):
    """The listening side; `session` and `secret` are for a new session, `lookup` finds the one to resume, by its id."""

    def __init__(
        self, side: Side, *, session: str, secret: bytes = b"", lookup: Callable[[str], Held | None] = lambda _: None
    ) -> None:
        super().__init__(side, Link.EXPECTING_HELLO)
        self._session = session
        self._secret = secret
        self._lookup = lookup
        self._offer: Hello | None = None
        self._agreement: Agreement | None = None

    def _take(self, frame: HandshakeFrame, body: bytes) -> None:
        if isinstance(frame, Hello):
            self._take_hello(frame, body)
        elif isinstance(frame, Proof):
            self._take_proof(frame)
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
        if side.private and hello.resume is None:
            self._state = Link.OPEN
            return self._open(Welcome(self._session, 0, b"", self._agreement, self._secret), self._secret)
        if not side.token and not side.private:
            return self._refuse(
                AuthenticationError("this server has no token, so it takes only what its own user's processes connect")
            )
        self._challenge = self._send(Challenge(self._agreement, side.nonce))
        return None

    def _take_proof(self, proof: Proof) -> None:
        """The token comes first: a stranger learns nothing of which sessions there are."""
        assert self._offer is not None
        resume = self._offer.resume
        if len(proof.mac) != MAC_SIZE and (proof.mac or resume is None):
            raise RemoteProtocolError(f"Proof refused: a MAC has {MAC_SIZE} bytes")
        if not self._side.private and not self._is_proof(proof.mac, b"client"):
            return self._refuse(AuthenticationError("authentication failed"))
        if resume is None:
            return self._open(Welcome(self._session, 0, self._mac(b"server")), self._mac(b"session"))
        held = self._lookup(resume.session)
        if held is None:
            return self._refuse(HandshakeError("there is no such session, or not any more"), "not_found")
        if not self._is_proof(proof.session_mac, b"resume", held.secret):
            return self._refuse(AuthenticationError("authentication failed"))
        if not self._agrees_with(held):
            return self._refuse(HandshakeError("the session was agreed on other terms"), "failed_precondition")
        received = held.take_over(resume)
        welcome = Welcome(resume.session, received, self._mac(b"resumed", held.secret))
        return self._open(welcome, held.secret, resume)

    def _agrees_with(self, held: Held) -> bool:
        assert self._offer is not None
        assert self._agreement is not None
        now = (self._agreement.version, self._agreement.codec, self._side.limits.lowest(self._offer.limits))
        return now == (held.version, held.codec, held.limits)

    def _open(self, welcome: Welcome, secret: bytes, resume: Resume | None = None) -> None:
        assert self._offer is not None
        assert self._agreement is not None
        self._send(welcome)
        offer, chosen = self._offer, self._agreement
        self.outcome = Established(
            chosen.version,
            chosen.codec,
            offer.limits,
            offer.features,
            offer.software,
            welcome.session,
            secret,
            resume.received if resume else 0,
            resume is not None,
        )
