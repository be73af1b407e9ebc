"""Frames as bytes, in both codecs: the same meaning, and one kind of error for whatever a peer sends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rlm_wire.errors import CallError, RemoteProtocolError
from rlm_wire.frames.codec import CODEC_NAMES, Codec, codec_named, decode_handshake_untrusted
from rlm_wire.frames.limits import HIGHEST_ID, SLICE_SIZE, UNSLICED_LIMIT
from rlm_wire.frames.schema import (
    Ack,
    Call,
    Cancel,
    Close,
    Credit,
    Fail,
    Goodbye,
    Item,
    Part,
    Ping,
    Pong,
    Reply,
)

FRAMES = [
    Goodbye("", "bye"), Ping(0), Pong(HIGHEST_ID), Ack(7), Close(HIGHEST_ID), Cancel(3, "why"), Credit(0, 1),
    Call(1, "calc.add", {"x": 1}, "scope", 1.5, 1), Call(2, "m", None), Item(1, [1, "é"]), Reply(1, {"a": b"\0"}),
    Fail(1, "internal", "text", {"n": 1}, True), Part(1, True, b"data"),
]  # fmt: skip


@pytest.fixture(params=CODEC_NAMES)
def codec(request: pytest.FixtureRequest) -> Codec:
    return codec_named(request.param)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_frame_comes_back(codec: Codec, frame: Any) -> None:
    body = codec.encode(frame)
    decoded: Any = codec.decode_frame_untrusted(body)
    assert type(decoded) is type(frame)
    assert codec.encode(decoded) == body


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_fields_behind_the_known_ones_are_ignored(codec: Codec, frame: Any) -> None:
    """[R-4.1.4]"""
    coder: Any = msgspec.msgpack if codec.name == "msgpack" else msgspec.json
    fields = coder.decode(codec.encode(frame))
    assert len(fields) == 1 + len(type(frame).__struct_fields__)
    assert type(codec.decode_frame_untrusted(coder.encode([*fields, "newer", {"x": [1]}]))) is type(frame)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_cut_short_or_continued_is_refused(codec: Codec, frame: Any) -> None:
    """[R-4.1.1]"""
    body = codec.encode(frame)
    for wrong in (body[:-1], body + b"\x01", body + b"1", b"", b"\xc1"):
        with pytest.raises(RemoteProtocolError):
            codec.decode_frame_untrusted(wrong)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("\ud800", "surrogates"),
        (2**64, "cannot be sent"),
        (object(), "object"),
        ({"x": object}, "cannot be sent"),
        (eval("[" * 70 + "]" * 70), "64 levels"),
    ],
)
def test_a_value_that_cannot_be_sent_is_the_callers_error(codec: Codec, value: Any, says: str) -> None:
    """[R-8.1.2]"""
    if codec.name == "json" and value == 2**64:
        assert b"18446744073709551616" in codec.encode(Reply(1, value))  # JSON has integers of any size
        return
    with pytest.raises(CallError, match=says) as caught:
        codec.encode(Reply(1, value))
    assert caught.value.code == "invalid_argument"
    caught.value.message.encode()  # fit to be sent


def test_a_value_that_contains_itself_is_the_callers_error(codec: Codec) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CallError):
        codec.encode(Reply(1, loop))


class _Point(msgspec.Struct):
    x: int
    y: int = 0


def test_a_value_of_the_wrong_type_is_refused_by_field(codec: Codec) -> None:
    """[R-6.1.2]"""
    reply: Any = codec.decode_frame_untrusted(codec.encode(Reply(1, {"x": "one"})))
    with pytest.raises(CallError, match=r"params of m: Expected `int`, got `str` - at `\$.x`") as caught:
        codec.decode_value(reply.result, _Point, "params of m")
    assert caught.value.code == "invalid_argument"


def test_unknown_map_keys_are_ignored(codec: Codec) -> None:
    """[R-4.1.5]"""
    reply: Any = codec.decode_frame_untrusted(codec.encode(Reply(1, {"x": 1, "newer": [None]})))
    assert codec.decode_value(reply.result, _Point, "result") == _Point(1)


@pytest.mark.parametrize("length", [1, 300, 48 * 1024, SLICE_SIZE])
@pytest.mark.parametrize("part_id", [1, 127, 128, 65_536, HIGHEST_ID])
def test_a_part_is_written_as_its_struct_would_be(codec: Codec, part_id: int, length: int) -> None:
    data = bytes(range(256)) * (length // 256 + 1)
    for last in (False, True):
        body = b"".join(codec.encode_part(part_id, last, memoryview(data)[:length]))
        assert codec.decode_frame_untrusted(body) == Part(part_id, last, data[:length])


def test_a_slice_fits_into_the_smallest_frame_limit(codec: Codec) -> None:
    """[R-5.2.4] Base64 makes four bytes of three."""
    part = codec.encode_part(HIGHEST_ID, False, memoryview(bytes(codec.slice_size)))
    assert sum(map(len, part)) <= UNSLICED_LIMIT


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"[9]",
        b"[6,1]",
        b"[1]",
        b"\xff",
        b'["1"]',
        b"[1,[1],[],[],{},1]",
        b"null",
        b"[4]" * 2,
        b"[" * 90,
    ],
)
def test_a_strangers_body_is_refused_with_one_kind_of_error(body: bytes) -> None:
    """[R-3.1.1]"""
    with pytest.raises(RemoteProtocolError, match=r"^handshake refused: "):
        decode_handshake_untrusted(body)


@pytest.mark.parametrize("deadline", [float("nan"), -1.0, float("-inf")])
def test_a_deadline_that_is_no_time_is_refused(deadline: float) -> None:
    """[R-6.6.4]"""
    codec = codec_named("msgpack")
    with pytest.raises(RemoteProtocolError):
        codec.decode_frame_untrusted(codec.encode(Call(1, "m", None, None, deadline)))


def test_names_are_exact() -> None:
    assert CODEC_NAMES == ("msgpack", "json")
    assert codec_named("json") is codec_named("json")
