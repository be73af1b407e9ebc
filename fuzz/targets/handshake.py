"""Both handshakes against a peer that plays along, lies, or sends anything: never raises, and opens only to a proof.

The peer here answers what our side has sent, so that it can also be right. Whether it has proved the token is judged by
`_is_proved`, from the bytes both sides sent and with an HMAC of its own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any, Final

import msgspec

from fuzz.choices import WHOLE, Choices, chunk_sizes
from fuzz.programs import damaged, frame_body
from fuzz.reach import Reach
from fuzz.rejections import check_listed
from rlm_wire.errors import HandshakeError, RemoteProtocolError
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.handshake import ClientHandshake, Established, Handshake, Resumption, ServerHandshake, Side
from rlm_wire.frames.limits import HANDSHAKE_FRAME_LIMIT, HEADER_SIZE, PREFACE, Limits
from rlm_wire.frames.schema import Agreement, Challenge, Goodbye, Hello, Proof, Resume, Welcome

REACH: Final = Reach(
    lines={"rlm_wire.frames.handshake": 92, "rlm_wire.frames.state": 40, "rlm_wire.frames.codec": 25},
    functions=(
        "Handshake.received",
        "Handshake.end_of_stream",
        "ClientHandshake._take_welcome",
        "ServerHandshake._take_hello",
        "ServerHandshake._take_proof",
        "ServerHandshake._open",
        "decode_handshake_untrusted",
        "next_link_state",
    ),
    marks=(
        *(f"{role} {end}" for role in ("client", "server") for end in ("open private", "open by token", "refused")),
        "client resumed",
        "server resumed",
        "banner",
        "frames behind Welcome",
        "no outcome",
    ),
)

_TOKEN: Final = bytes.fromhex("f3a94c0be17d25d86612")
_NONCE: Final = bytes(range(32))
_SECRET: Final = bytes.fromhex("9be2c05f7714a8d3")
_BEFORE: Final = Established(1, "msgpack", Limits(), [], "theirs/1", "earlier", _SECRET)
"""The session that either side may ask to resume."""

_TAGS: Final = {1: "Hello", 2: "Challenge", 3: "Proof", 4: "Welcome", 5: "Goodbye"}


class _Held:
    """That session at a server."""

    secret, version, codec, limits = _SECRET, 1, "json", Limits()

    def take_over(self, resume: Resume) -> int:
        if resume.received > 100:
            raise RemoteProtocolError("Ack of more frames than were sent")
        return 5


class _Talk:
    """One handshake of ours, and everything that either side has sent."""

    def __init__(self, mode: int, seed: int) -> None:
        self.client = bool(mode & 1)
        self.side = Side(
            "ours/1",
            _NONCE,
            features=["x"],
            token=_TOKEN if mode & 4 else None,
            private=bool(mode & 2),
            channel_binding=b"certificate" if mode & 32 else b"",
        )
        self.ours: Handshake
        if self.client:
            resume = Resumption(_BEFORE, 7, 1) if mode & 64 else None
            self.ours = ClientHandshake(self.side, skip_banner=bool(mode & 16), resume=resume)
        else:
            self.ours = ServerHandshake(self.side, session="session", secret=_SECRET, lookup={"earlier": _Held()}.get)
        self.sent = b"".join(self.ours.data_to_send())
        self.heard = b""
        self._sizes = chunk_sizes(seed)

    def hear(self, data: bytes) -> None:
        """Our side receives `data`, in chunks, until it has an outcome."""
        at = 0
        while at < len(data) and self.ours.outcome is None:
            space = self.ours.buffer.writable()
            assert len(space) > 0, "no space to receive into"
            assert len(space) + len(self.ours.buffer) <= HANDSHAKE_FRAME_LIMIT + HEADER_SIZE, "a stranger holds memory"
            count = min(next(self._sizes), len(space), len(data) - at)
            space[:count] = data[at : at + count]
            at += count
            self.ours.received(count)
            self.sent += b"".join(self.ours.data_to_send())
        self.heard += data[:at]
        if self.ours.outcome is not None and len(self.ours.buffer):
            self.heard = self.heard[: -len(self.ours.buffer)]  # what is behind the outcome is no part of the handshake

    def frame(self, name: str, *, ours: bool) -> bytes:
        """The first body of that kind that one side sent, empty if there is none."""
        stream = self.sent if ours else self.heard
        return next((body for body in _bodies(stream) if _kind(body) == name), b"")


def run(data: bytes) -> None:
    choices = Choices(data)
    mode = choices.byte()
    seed = choices.byte()
    if mode & 8:
        messages = [choices.rest()]
        whole = _converse(mode, WHOLE, messages)
    else:
        messages = []
        whole = _improvise(mode, choices, messages)
    _check(whole)
    chunked = _converse(mode, seed, messages)
    assert _summary(whole) == _summary(chunked), f"whole {_summary(whole)}, in chunks {_summary(chunked)}"


def _converse(mode: int, seed: int, messages: list[bytes]) -> _Talk:
    talk = _Talk(mode, seed)
    for message in messages:
        talk.hear(message)
    return talk


def _improvise(mode: int, choices: Choices, messages: list[bytes]) -> _Talk:
    """A peer that reads what we say; `messages` records what it said, to be said again in chunks."""
    talk = _Talk(mode, WHOLE)
    preface = choices.byte()
    messages.append(choices.blob() + PREFACE if preface & 1 else PREFACE if preface < 240 else b"")
    talk.hear(messages[0])
    while choices.left and talk.ours.outcome is None:
        match choices.byte() % 8:
            case 0:
                message = choices.blob()
            case 1:
                message = _framed(frame_body(choices, "json"))
            case 2:
                message = _framed(damaged(msgspec.json.encode(_any_frame(choices)), choices))
            case _:
                message = _framed(damaged(msgspec.json.encode(_right_frame(talk, choices)), choices))
        if choices.byte() & 1:  # what follows at once, perhaps behind Welcome
            message += _framed(frame_body(choices, "msgpack"))
        messages.append(message)
        talk.hear(message)
    return talk


def _right_frame(talk: _Talk, choices: Choices) -> Any:
    """What an honest peer would say next, or one that only lacks the proof."""
    binding = talk.side.channel_binding
    agreement = Agreement(1, choices.pick(("msgpack", "json")), [], _limits(choices), "theirs/1")
    if not talk.client:
        if not talk.frame("Hello", ours=False):
            resume = Resume("earlier", 3) if choices.flag() else None
            return Hello([1], ["json", "msgpack"], ["y"], _limits(choices), _NONCE[::-1], "theirs/1", resume)
        hello, challenge = talk.frame("Hello", ours=False), talk.frame("Challenge", ours=True)
        token_mac = _proof(choices, _TOKEN, b"client", hello, challenge, binding)
        return Proof(token_mac, _proof(choices, _SECRET, b"resume", hello, challenge, binding))
    hello, challenge = talk.frame("Hello", ours=True), talk.frame("Challenge", ours=False)
    resuming = b'"earlier"' in hello
    if talk.side.private and choices.byte() < (16 if resuming else 192):
        return Welcome("session", 0, b"", agreement)
    if not challenge:
        return Challenge(agreement, _NONCE[::-1])
    if resuming:
        return Welcome("earlier", 3, _proof(choices, _SECRET, b"resumed", hello, challenge, binding))
    return Welcome("session", 0, _proof(choices, _TOKEN, b"server", hello, challenge, binding))


def _proof(choices: Choices, key: bytes, role: bytes, *parts: bytes) -> bytes:
    """The right HMAC, or what somebody without the key may have: the other side's, another stream's, a guess."""
    right = _mac(key, role, *parts)
    how = choices.byte()
    if how < 192:
        return right
    other_role = {b"client": b"server", b"server": b"client", b"resume": b"resumed", b"resumed": b"resume"}[role]
    return choices.pick(
        (
            _mac(key, other_role, *parts),
            _mac(key, role, *parts[:2], b"another certificate"),
            _mac(key, role, parts[0], b"[2]", *parts[2:]),
            _mac(b"guessed", role, *parts),
            bytes((right[0] ^ (how & 63 or 1),)) + right[1:],
            choices.take(32).ljust(32, b"\0"),
        )
    )


def _limits(choices: Choices) -> Limits:
    fields = Limits.__struct_fields__
    return Limits(**{choices.pick(fields): choices.number()}) if choices.byte() >= 200 else Limits()


def _any_frame(choices: Choices) -> Any:
    agreement = Agreement(choices.number(), choices.text(), [choices.text()], _limits(choices), choices.text())
    return choices.pick(
        (
            Hello([choices.number()], [choices.text(), "json"], [], _limits(choices), choices.blob(), choices.text()),
            Challenge(agreement, choices.take(choices.byte() % 80)),
            Proof(choices.take(32)),
            Welcome(choices.text(), choices.byte(), choices.take(32), agreement if choices.flag() else None),
            Goodbye(choices.pick(("", "unauthenticated", "internal")), choices.text()),
        )
    )


def _check(talk: _Talk) -> None:
    outcome = talk.ours.outcome
    role = "client" if talk.client else "server"
    assert _TOKEN not in talk.sent, "the token was sent"
    assert talk.side.private or base64.b64encode(_SECRET) not in talk.sent, "the secret was sent to a stranger"
    kinds = [_kind(body) for body in _bodies(talk.sent)]
    assert all(kind in _TAGS.values() for kind in kinds)
    if isinstance(outcome, Established):
        proved = _is_proved(talk, resumed=outcome.resumed)
        assert proved or (talk.side.private and not outcome.resumed), "open without a proof"
        assert not outcome.resumed or outcome.session == "earlier"
        assert not (talk.client and talk.frame("Challenge", ours=False)) or proved, (
            "a challenge, and open without proof"
        )
        assert outcome.codec in ("msgpack", "json")
        assert outcome.limits.problem() is None
        assert "Goodbye" not in kinds
        REACH.mark(f"{role} " + ("resumed" if outcome.resumed else "open by token" if proved else "open private"))
        REACH.mark_if(bool(talk.ours.banner), "banner")
        _go_on(talk, outcome)
    elif outcome is not None:
        check_listed(outcome)
        assert len(str(outcome)) < 3 * HANDSHAKE_FRAME_LIMIT
        REACH.mark(f"{role} refused")
    else:
        assert isinstance(talk.ours.end_of_stream(), HandshakeError)
        REACH.mark("no outcome")


def _is_proved(talk: _Talk, *, resumed: bool) -> bool:
    """Did the peer send the HMACs that only who knows the token, and the session, can make, over these two Hellos?"""
    binding = talk.side.channel_binding
    hello = talk.frame("Hello", ours=talk.client)
    challenge = talk.frame("Challenge", ours=not talk.client)
    answer = talk.frame("Welcome" if talk.client else "Proof", ours=False)
    if not (hello and challenge and answer):
        return False
    parts = (hello, challenge, binding)
    if talk.client:
        mac = msgspec.json.decode(answer, type=Welcome).mac
        return bool(mac == (_mac(_SECRET, b"resumed", *parts) if resumed else _mac(_TOKEN, b"server", *parts)))
    proof = msgspec.json.decode(answer, type=Proof)
    by_token = bool(talk.side.token) and proof.mac == _mac(_TOKEN, b"client", *parts)
    if not resumed:
        return by_token
    return (by_token or talk.side.private) and proof.session_mac == _mac(_SECRET, b"resume", *parts)


def _mac(token: bytes, role: bytes, *parts: bytes) -> bytes:
    message = b"rlm-wire/1 " + role + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(token, message, hashlib.sha256).digest()


def _go_on(talk: _Talk, established: Established) -> None:
    """What came behind the handshake is the connection's, and cannot make it raise either."""
    REACH.mark_if(len(talk.ours.buffer) > 0, "frames behind Welcome")
    core = Connection(
        client=talk.client,
        codec=codec_named(established.codec),
        ours=talk.side.limits,
        theirs=established.limits,
        buffer=talk.ours.buffer,
    )
    core.process()


def _summary(talk: _Talk) -> tuple[str, bytes]:
    """What must not depend on chunks: the kind of outcome, and what was sent, but for the words of a Goodbye."""
    outcome = talk.ours.outcome
    if isinstance(outcome, Established):
        return repr(outcome), talk.sent
    before_goodbye = b"".join(body for body in _bodies(talk.sent) if _kind(body) != "Goodbye")
    return type(outcome).__name__, before_goodbye


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_SIZE, "big") + body


def _bodies(stream: bytes) -> list[bytes]:
    """Whole bodies behind the first preface in `stream`."""
    _, _, stream = stream.partition(PREFACE)
    found = []
    while len(stream) >= HEADER_SIZE:
        end = HEADER_SIZE + int.from_bytes(stream[:HEADER_SIZE], "big")
        if end > len(stream):
            break
        found.append(stream[HEADER_SIZE:end])
        stream = stream[end:]
    return found


def _kind(body: bytes) -> str:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""
    return _TAGS.get(decoded[0], "") if isinstance(decoded, list) and decoded and isinstance(decoded[0], int) else ""
