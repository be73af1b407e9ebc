"""What fuzzing starts from, made at run time: the protocol's byte vectors, seeds by hand, and fixed noise.

Noise is for the targets' structured modes, in which any bytes mean nearly valid frames.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from fuzz.choices import WHOLE
from rlm_wire.frames.limits import NESTING_LIMIT, PREFACE, Limits
from rlm_wire.frames.schema import Ack, Call, Cancel, Close, Credit, Fail, Goodbye, Hello, Item, Part, Ping, Pong, Reply

ROOT: Final = Path(__file__).parent.parent
VECTORS: Final = ROOT / "tests" / "vectors" / "v1"
LONGEST_INPUT: Final = 4_096
FINDINGS: Final = ROOT / "tests" / "fuzz_findings"

_FRAMES: Final = (
    Call(1, "calc.add", {"x": 1, "y": 2}, "cell 1", 1.5, 1), Call(2, "calc.tail", {}), Item(1, "chunk"), Close(1),
    Reply(1, 3), Fail(1, "internal", "it broke", {"n": 1}, True), Cancel(1, "enough"), Cancel(2), Credit(1, 65_536),
    Credit(0, 1), Part(1, True, memoryview(b"\x93\x11\x01\x01")), Ack(1), Ping(7), Pong(7), Goodbye("", "bye"),
)  # fmt: skip
_VALUES: Final[tuple[object, ...]] = (
    None,
    1,
    1.5,
    "text",
    b"bytes",
    [],
    ["a"],
    {},
    {"x": 1, "y": 2},
    {"agent": "a", "code": "1+1"},
)
_HELLO: Final = Hello([1], ["msgpack", "json"], ["x"], Limits(), bytes(32), "theirs/1")
_STRANGERS: Final = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"\x15\x03\x03\x00\x02\x02\x28",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"Welcome!\n\x89RLMW\n\x1a",
    b"\x89RLMW\r\r\n\x1a",
    b"^IRLMW\r\n^Z",
    b"last login: today\r\n" + PREFACE + b"rest",
    b"",
)


def seeds(target: str) -> Iterator[bytes]:
    """Every seed of a target, in a fixed order."""
    yield from _BY_HAND[target]()
    noise = random.Random(target)
    yield from (noise.randbytes(size) for size in (20, 60, 200, 600) for _ in range(40))


def write_corpus(target: str, directory: Path) -> None:
    """Write the seeds of a target, and the findings of old, into `directory`, which may hold more already."""
    directory.mkdir(parents=True, exist_ok=True)
    for seed in (*seeds(target), *(path.read_bytes() for path in findings(target))):
        (directory / hashlib.sha256(seed).hexdigest()[:20]).write_bytes(seed)


def findings(target: str) -> list[Path]:
    """Inputs that once broke a promise."""
    return sorted((FINDINGS / target).glob("*"))


class Vector(msgspec.Struct):
    """What the fuzzer takes of a vector (tests/vectors/README.md): who receives which bytes, and when."""

    phase: Literal["handshake", "session"]
    receiver: Literal["client", "server"]
    receive: list[str | tuple[str, int]]
    codec: Literal["msgpack", "json"] = "msgpack"

    @property
    def stream(self) -> bytes:
        """All that is received; of what is longer than inputs are, the beginning."""
        pieces = ((each, 1) if isinstance(each, str) else each for each in self.receive)
        return b"".join(bytes.fromhex(text) * times for text, times in pieces)[:LONGEST_INPUT]


def vectors(phase: str) -> list[Vector]:
    """The protocol's byte vectors of one phase."""
    every = (msgspec.json.decode(path.read_bytes(), type=Vector) for path in sorted(VECTORS.glob("*/*.json")))
    return [vector for vector in every if vector.phase == phase]


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def _framing() -> Iterator[bytes]:
    for stream in (*_STRANGERS, *(vector.stream for vector in vectors("handshake"))):
        yield from (bytes((mode, chunks)) + stream for mode in (0, 4) for chunks in (3, WHOLE))
    for stream in (b"\0\0\0\x01a\0\0\0\x02bc\0\0\0\0", b"\xff" * 5, *(vector.stream for vector in vectors("session"))):
        yield from (bytes((1, chunks, limit)) + stream for chunks in (0, 5) for limit in (0, 3))
    yield bytes((6, 0)) + b"\xe0 \x03\0"  # a banner without an end, three times


def _codec() -> Iterator[bytes]:
    for frame in _FRAMES:
        yield b"\0" + msgspec.msgpack.encode(frame)
        yield b"\1" + msgspec.json.encode(frame)
    for levels in (NESTING_LIMIT - 1, NESTING_LIMIT, NESTING_LIMIT + 1, 400):
        for head in (b"\x91", b"\x81\x01", b"\xdc\0\1", b"\xdd\0\0\0\1", b"\xde\0\1\1", b"\xdf\0\0\0\1\1"):
            yield b"\0" + head * levels + b"\xc0"
        yield b"\1" + b"[" * levels + b"]" * levels
        yield b"\1" + b'{"a\\"":' * levels + b"1" + b"}" * levels
    yield b"\0\x91" + b"\xdc\x05\x00" + b"\0" * 1_280
    for vector in vectors("session"):
        yield bytes((vector.codec == "json",)) + vector.stream[4:]


def _handshake() -> Iterator[bytes]:
    for mode in range(128):
        yield bytes((mode & ~8, 5, 0)) + b"\x04" * 60  # a peer that does everything right
        yield bytes((mode & ~8, 0, 1, 9)) + b"a banner\n" + b"\x05" * 60  # and speaks first, and at once
    hello = PREFACE + _framed(msgspec.json.encode(_HELLO))
    for stream in (hello, *_STRANGERS):
        yield from (bytes((mode, chunks)) + stream for mode in (8, 10, 13, 31) for chunks in (3, WHOLE))
    for vector in vectors("handshake"):
        yield from (bytes((8 | mode | (vector.receiver == "client"), 3)) + vector.stream for mode in (2, 4, 16))


def _connection() -> Iterator[bytes]:
    for codec, encode in ((0, msgspec.msgpack.encode), (2, msgspec.json.encode)):
        talk = b"".join(_framed(encode(frame)) for frame in _FRAMES)
        yield from (bytes((8 | codec | side, chunks)) + talk for side in (0, 1, 4, 5) for chunks in (0, 3))
        yield from (bytes((8 | codec | side, 3)) + _framed(encode(frame)) for frame in _FRAMES for side in (0, 1))
    yield from (bytes((mode, 3)) + script for mode in range(8) for script in _scripts(1 - (mode & 1)))
    for vector in vectors("session"):
        mode = 8 | (vector.receiver == "client") | 2 * (vector.codec == "json")
        yield from (bytes((mode | small, 3)) + vector.stream for small in (0, 4))


def _scripts(peer: int) -> Iterator[bytes]:
    """Sessions in the bytes that `fuzz.sessions.script` reads; the calls of the peer have parity `peer`."""
    call = bytes((0, 0, 0, 0, 0, 0, 0, 3, 0, 0))  # the peer's, with its first id
    items = bytes((0, 0, 3, peer, 0, 2, 226, 65, 0)) * 4
    sliced = bytes((6, 0, 3, peer, 0, 2, 229, 65, 2)) + bytes((7, 7))
    consume, send = bytes((9, 7, 0)), bytes((9, 8, 0))
    cancel, reply, fail = bytes((9, 5, 3)), bytes((9, 3, 0, 3)), bytes((9, 4, 0, 3))
    yield call + fail + send
    yield b"".join(call[:6] + bytes((number,)) + call[7:] for number in range(8)) + send
    yield call + items * 24 + send
    yield call + (items + consume) * 12 + send + reply + send
    yield call + sliced + consume + sliced + reply + send
    yield call + bytes((9, 1, 0, 2, 226, 65)) * 3 + send + bytes((9, 2, 0)) + reply + send
    for length in (227, 229, 230):
        large = bytes((9, 0, 0, 2, length, 65))
        yield large * 3 + send + cancel + send
        yield large + cancel + large + bytes((9, 1, 3, 3)) + cancel + send
        yield large + bytes((9, 8, 40)) + cancel + send * 3


def _parameters() -> Iterator[bytes]:
    """For each type what is right at once (all choices zero), and what may be right."""
    from fuzz.targets.parameters import NAMES  # here: it loads the vocabulary, which the other targets do not need

    for entry in (number.to_bytes(2, "big") for number in range(len(NAMES))):
        yield from (bytes((codec,)) + entry + bytes((1,)) * size for codec in (0, 1) for size in (0, 40, 200))
        yield from (b"\2" + entry + msgspec.msgpack.encode(value) for value in _VALUES)
        yield from (b"\3" + entry + msgspec.json.encode(value) for value in _VALUES)


_BY_HAND: Final = {
    "framing": _framing,
    "codec": _codec,
    "handshake": _handshake,
    "connection": _connection,
    "parameters": _parameters,
}
