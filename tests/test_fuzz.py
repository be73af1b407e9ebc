"""The fuzz targets without a fuzzer: they take their seeds and every old finding, and the checks in them can fail."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fuzz.conduct import Conduct
from fuzz.corpus import FINDINGS, findings, seeds, vectors
from fuzz.reach import measure
from fuzz.rejections import UnlistedRejection, check_listed
from fuzz.retained import retained
from fuzz.slow_walk import Verdict, walk_json, walk_msgpack
from fuzz.targets import NAMES, target
from rlm_wire.errors import CallError, RemoteProtocolError
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.events import Ended
from rlm_wire.frames.limits import Limits
from rlm_wire.frames.schema import Close, Pong

FOUND = [(name, path) for name in NAMES for path in findings(name)]


@pytest.mark.parametrize(("name", "path"), FOUND, ids=[f"{name}-{path.name}" for name, path in FOUND])
def test_an_old_finding_stays_fixed(name: str, path) -> None:
    target(name).run(path.read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_a_target_takes_its_seeds(name: str) -> None:
    run = target(name).run
    for seed in seeds(name):
        run(seed)


def test_findings_belong_to_targets() -> None:
    assert {path.name for path in FINDINGS.iterdir()} <= set(NAMES)


def test_every_vector_is_a_seed() -> None:
    seen = {seed[3:] for seed in seeds("framing")} | {seed[2:] for seed in seeds("handshake")}
    assert {vector.stream for phase in ("handshake", "session") for vector in vectors(phase)} <= seen


def test_a_target_that_does_not_get_there_is_told_so() -> None:
    shortfalls = measure("framing", [b"", b"\1\0"])
    assert "guess was never entered" in shortfalls
    assert "'banner' was never seen" in shortfalls
    assert any(each.startswith("only ") and "rlm_wire.frames.framing" in each for each in shortfalls)


def test_the_targets_load_neither_trio_nor_sockets() -> None:
    code = f"""
import json, sys
from fuzz.targets import target
for name in {NAMES!r}: target(name)
print(json.dumps([name for name in ("trio", "socket", "ssl", "atheris") if name in sys.modules]))
"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(loaded.stdout) == []


@pytest.mark.parametrize(
    "error", [RemoteProtocolError("'NoneType' object is not iterable"), CallError("internal", "call 1 is not open")]
)
def test_a_rejection_that_is_not_listed_is_a_finding(error: RemoteProtocolError | CallError) -> None:
    with pytest.raises(UnlistedRejection):
        check_listed(error)


@pytest.mark.parametrize(
    ("walk", "body", "verdict"),
    [
        (walk_msgpack, b"\x91" * 64 + b"\xc0", Verdict.FINE),
        (walk_msgpack, b"\x91" * 64 + b"\x90", Verdict.TOO_DEEP),
        (walk_msgpack, b"\xd9\x05[[[[[", Verdict.FINE),
        (walk_msgpack, b"\x92\xc0", Verdict.MALFORMED),
        (walk_msgpack, b"\xc1", Verdict.MALFORMED),
        (walk_json, b"[" * 64 + b"]" * 64, Verdict.FINE),
        (walk_json, b"[" * 65, Verdict.TOO_DEEP),
        (walk_json, b'["\\"[[' + b"[" * 100 + b'"]', Verdict.FINE),
        (walk_json, b"[]]", Verdict.MALFORMED),
    ],
)
def test_the_judge_of_nesting_is_right(walk, body: bytes, verdict: Verdict) -> None:
    assert walk(body) is verdict


def test_events_that_may_not_come_are_seen() -> None:
    def conduct() -> Conduct:
        return Conduct(client=True, codec=codec_named("msgpack"), limits=Limits())

    with pytest.raises(KeyError):
        conduct().saw(Close(1))
    closing = conduct()
    closing.opened(1)
    closing.saw(Close(1))
    with pytest.raises(AssertionError, match="a second close"):
        closing.saw(Close(1))
    ended = conduct()
    ended.saw(Ended(None))
    with pytest.raises(AssertionError, match="after the end"):
        ended.saw(Pong(1))
    with pytest.raises(AssertionError, match="half a frame"):
        conduct().sent(b"\0\0\0\x09\x92")


def test_memory_is_seen_wherever_it_is_held() -> None:
    assert retained({"a": [bytearray(100_000)], "b": memoryview(bytes(50_000))}) > 150_000
    held = bytearray(100_000)
    assert retained([held, held, int], shared=(held,)) < 1_000
