"""Both codecs and the nesting checks: refusals are typed, what is accepted survives a round trip, bombs are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from fuzz.choices import Choices
from fuzz.programs import damaged, frame, frame_body, nested_msgpack, value
from fuzz.reach import Reach
from fuzz.rejections import check_listed
from fuzz.slow_walk import Verdict, depth_of, walk_json, walk_msgpack
from rlm_wire.errors import CallError, RemoteProtocolError
from rlm_wire.frames.codec import CODEC_NAMES, Codec, codec_named
from rlm_wire.frames.limits import NESTING_LIMIT
from rlm_wire.frames.nesting import is_json_nested_too_deeply, is_msgpack_nested_too_deeply
from rlm_wire.frames.schema import Fail, Frame, Part

_NAMES: Final = ("Call", "Item", "Close", "Reply", "Fail", "Cancel", "Credit", "Part", "Ack", "Ping", "Pong", "Goodbye")

REACH: Final = Reach(
    lines={"rlm_wire.frames.codec": 60, "rlm_wire.frames.nesting": 95},
    functions=(
        "Codec.encode",
        "Codec.decode_frame_untrusted",
        "Codec.encode_part",
        "is_msgpack_nested_too_deeply",
        "is_json_nested_too_deeply",
        "describe",
    ),
    marks=(
        *(f"{codec} {name}" for codec in CODEC_NAMES for name in _NAMES),
        *(f"{codec} {verdict.name}" for codec in CODEC_NAMES for verdict in Verdict),
        "not encodable",
    ),
)

_NESTING: Final[dict[str, tuple[Callable[[bytes], bool], Callable[[bytes], Verdict], Callable[[bytes], Any]]]] = {
    "msgpack": (is_msgpack_nested_too_deeply, walk_msgpack, msgspec.msgpack.decode),
    "json": (is_json_nested_too_deeply, walk_json, msgspec.json.decode),
}
_EMPTY: Final = {"msgpack": b"\xc0", "json": b"null"}


def run(data: bytes) -> None:
    choices = Choices(data)
    mode = choices.byte()
    codec = codec_named(CODEC_NAMES[mode & 1])
    match mode >> 1 & 7:
        case 0:
            _check_body(codec, choices.rest())
        case 1:
            _check_body(codec, damaged(frame_body(choices, codec.name), choices))
        case 2:
            _check_body(codec_named("msgpack"), nested_msgpack(choices))
        case 3:
            _check_part(codec, choices)
        case _:
            _check_encode(codec, choices)


def _check_body(codec: Codec, body: bytes) -> None:
    _check_nesting(codec.name, body)
    try:
        decoded = codec.decode_frame_untrusted(body)
    except RemoteProtocolError as error:
        check_listed(error)
        return
    REACH.mark(f"{codec.name} {type(decoded).__name__}")
    first = codec.encode(_sendable(decoded, codec))
    again = codec.decode_frame_untrusted(first)
    assert type(again) is type(decoded)
    assert codec.encode(_sendable(again, codec)) == first, "the second encoding differs from the first"
    assert _fields(_sendable(decoded, codec)) == _fields(again), f"{decoded!r} became {again!r}"


def _sendable(decoded: Frame, codec: Codec) -> Frame:
    """A received Fail without data holds an empty Raw, which only says that nothing came: no codec writes that."""
    if isinstance(decoded, Fail) and not bytes(decoded.data):
        return msgspec.structs.replace(decoded, data=msgspec.Raw(_EMPTY[codec.name]))
    return decoded


def _fields(decoded: Frame) -> list[Any]:
    values = (getattr(decoded, field) for field in decoded.__struct_fields__)
    return [bytes(each) if isinstance(each, msgspec.Raw) else each for each in values]


def _check_nesting(name: str, body: bytes) -> None:
    quick, slow, decode = _NESTING[name]
    is_too_deep, verdict = quick(body), slow(body)
    REACH.mark(f"{name} {verdict.name}")
    if verdict is not Verdict.MALFORMED:
        assert is_too_deep is (verdict is Verdict.TOO_DEEP), f"the quick check says {is_too_deep}, a walk {verdict}"
    if not is_too_deep:
        try:
            decoded = decode(body)
        except (msgspec.DecodeError, ValueError, TypeError):  # TypeError: a map as the key of a map
            return
        assert depth_of(decoded) <= NESTING_LIMIT, "a value deeper than the limit was let through"


def _check_encode(codec: Codec, choices: Choices) -> None:
    """What may be sent is what the other side takes; what may not raises CallError."""
    odd = choices.pick((None, 2**64, "\ud800", object(), {1: "int key"}, {None: 1}, float("nan"), {"\ud800": 1}))
    sent = frame(choices) if odd is None else Fail(1, "internal", "", [value(choices), odd])
    try:
        body = codec.encode(sent)
    except CallError as error:
        check_listed(error)
        error.message.encode()
        REACH.mark("not encodable")
        return
    _check_body(codec, body)


def _check_part(codec: Codec, choices: Choices) -> None:
    """The pieces of a hand-written Part are what the schema says."""
    part_id, last, data = choices.number() % 2**53 or 1, choices.flag(), choices.blob() or b"x"
    body = b"".join(codec.encode_part(part_id, last, memoryview(data)))
    assert codec.decode_frame_untrusted(body) == Part(part_id, last, memoryview(data))
