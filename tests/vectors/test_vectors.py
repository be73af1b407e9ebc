"""Runs every vector of v1: whole, and byte at a time, with the same outcome. README.md says what a vector holds."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlm_wire.errors import HandshakeError
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.events import CreditReceived, Ended, Event, ItemReceived
from rlm_wire.frames.framing import ReceiveBuffer
from rlm_wire.frames.handshake import ClientHandshake, Established, Handshake, Resumption, ServerHandshake, Side
from rlm_wire.frames.limits import PREFACE, Limits
from rlm_wire.frames.schema import Goodbye, Resume

V1 = Path(__file__).parent / "v1"
FILES = {path.relative_to(V1).with_suffix("").as_posix(): path for path in V1.glob("*/*.json")}
CASES = sorted(FILES)
CHUNKS = [1 << 30, 1]
SECRET = b"s" * 32
"""What the server gives a new session on a private stream."""

LONG = 20_000
"""Vectors beyond this many bytes are fed 997 at a time instead of one."""


def test_the_files_are_the_listed_cases() -> None:
    assert json.loads((V1 / "cases.json").read_text()) == CASES


def load(name: str) -> dict[str, Any]:
    vector: dict[str, Any] = json.loads(FILES[name].read_text())
    vector["bytes"] = b"".join(
        bytes.fromhex(piece) if isinstance(piece, str) else bytes.fromhex(piece[0]) * piece[1]
        for piece in vector["receive"]
    )
    return vector


@pytest.mark.parametrize("chunk", CHUNKS, ids=["whole", "byte at a time"])
@pytest.mark.parametrize("name", CASES)
def test_a_vector_is_understood_or_refused_as_it_says(name: str, chunk: int) -> None:
    vector = load(name)
    if len(vector["bytes"]) > LONG:
        chunk = max(chunk, 997)
    run = handshake if vector["phase"] == "handshake" else session
    run(vector, chunk, accept=name.startswith("accept/"))


def test_every_vector_says_what_it_is_for() -> None:
    for name in CASES:
        vector = load(name)
        assert vector["about"], name
        assert vector["requirements"], name
        accept = name.startswith("accept/")
        assert ("error" in vector) is not accept, name
        assert accept or vector.get("says"), name
        assert not accept or "sends" in vector, name


# ------------------------------------------------------------------- handshake


def handshake(vector: dict[str, Any], chunk: int, *, accept: bool) -> None:
    setup = dict(vector["setup"])
    skip_banner = setup.pop("skip_banner", False)
    session_id = setup.pop("session", "s")
    resume, held = (setup.pop(key, None) for key in ("resume", "held"))
    for key in ("nonce", "channel_binding"):
        if key in setup:
            setup[key] = bytes.fromhex(setup[key])
    if "token" in setup:
        setup["token"] = setup["token"].encode()
    side = Side(**setup)
    core: Handshake
    if vector["receiver"] == "client":
        core = ClientHandshake(side, skip_banner=skip_banner, resume=resume and resumption(resume))
    else:
        core = ServerHandshake(side, session=session_id, secret=SECRET, lookup=lambda name: held and Held(held, name))
    rest = feed_handshake(core, vector["bytes"], chunk)
    sends = b"".join(core.data_to_send())
    outcome = core.outcome
    if accept:
        assert isinstance(outcome, Established), outcome
        assert sends.hex() == vector["sends"]
        assert {key: getattr(outcome, key) for key in vector["established"]} == vector["established"]
        assert (core.buffer.peek() + rest).hex() == vector.get("rest", "")
        return
    assert isinstance(outcome, HandshakeError), outcome
    if chunk > 1:  # a stranger is refused at its first wrong byte, when less can be said of it
        assert vector["says"] in str(outcome)
    _, code, message = json.loads(bodies(sends.removeprefix(PREFACE))[-1])
    assert (code, message) == (vector["error"], str(outcome))


def resumption(setup: dict[str, Any]) -> Resumption:
    begun = Established(1, "msgpack", Limits(), [], "s", setup["session"], bytes.fromhex(setup["secret"]))
    return Resumption(begun, setup["received"], setup["attempt"])


class Held:
    """A session of the server."""

    def __init__(self, setup: dict[str, Any], name: str) -> None:
        assert name == setup["session"]
        self.secret = bytes.fromhex(setup["secret"])
        self.version = 1
        self.codec = setup.get("codec", "msgpack")
        self.limits = Limits()
        self._received = setup["received"]

    def take_over(self, resume: Resume) -> int:
        received: int = self._received
        return received


def feed_handshake(core: Handshake, data: bytes, chunk: int) -> bytes:
    """Feeds until there is an outcome; what was not looked at any more."""
    rest = data
    while rest and core.outcome is None:
        space = core.buffer.writable()
        count = min(len(space), len(rest), chunk)
        space[:count] = rest[:count]
        rest = rest[count:]
        core.received(count)
    return rest


def bodies(data: bytes) -> list[bytes]:
    buffer, found = ReceiveBuffer(1 << 20), []
    while data:
        space = buffer.writable()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        data = data[count:]
        buffer.wrote(count)
        while (body := buffer.next_body_untrusted()) is not None:
            found.append(bytes(body))
    return found


# --------------------------------------------------------------------- session


def session(vector: dict[str, Any], chunk: int, *, accept: bool) -> None:
    setup = vector["setup"]
    limits = Limits(**setup.get("limits", {}))
    codec = codec_named(vector["codec"])
    core = Connection(client=vector["receiver"] == "client", codec=codec, ours=limits, theirs=limits)
    for _ in range(setup.get("calls", 0)):
        core.call("m", None)
    core.data_to_send(1 << 20)
    events: list[Any] = []
    view = memoryview(vector["bytes"])
    while view and not core.ended:
        space = core.writable()
        count = min(len(space), len(view), chunk)
        space[:count] = view[:count]
        view = view[count:]
        events += [event if isinstance(event, Ended) else described(core, event) for event in core.received(count)]
    sends = b"".join(core.data_to_send(1 << 30))
    if accept:
        assert [["Ended"] if event == Ended(None) else event for event in events] == vector["events"]
        assert sends.hex() == vector["sends"]
        return
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert ended.error is not None
    goodbye = codec.decode_frame_untrusted(bodies(sends)[-1])
    assert goodbye == Goodbye(vector["error"], str(ended.error))
    assert vector["says"] in goodbye.message


def described(core: Connection, event: Event) -> list[Any]:
    """An event as vectors write it: the frame's name and fields, values decoded."""
    if isinstance(event, CreditReceived):
        return ["Credit", event.id]
    if isinstance(event, ItemReceived):
        return ["Item", event.id, value(core, event.value)]
    fields = [value(core, field) for field in msgspec.structs.astuple(event)]
    return [type(event).__name__, *fields]


def value(core: Connection, field: Any) -> Any:
    if not isinstance(field, msgspec.Raw):
        return field
    return core.codec.decode_value(field, Any, "value") if bytes(field) else None


def test_bytes_in_json_are_base64_with_padding() -> None:
    """[R-4.1.6]"""
    part = codec_named("json").encode_part(1, True, memoryview(b"ab"))
    assert b"".join(part) == b'[23,1,true,"' + base64.b64encode(b"ab") + b'"]'
