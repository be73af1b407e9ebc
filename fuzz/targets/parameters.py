"""Params, results and items of every method: wrong ones are one call's fault, and say so in words that can be sent."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, Final, Never

import msgspec

import rlm_wire.methods
from fuzz.choices import Choices
from fuzz.programs import ENCODE, damaged, value
from fuzz.reach import Reach
from fuzz.rejections import check_listed
from rlm_wire.errors import CallError
from rlm_wire.frames.codec import CODEC_NAMES, Codec, codec_named
from rlm_wire.frames.schema import Fail
from rlm_wire.methods.base import Request, StreamRequest, request_types


class Add(Request[int], tag="calc.add"):
    x: int
    y: int


class Anything(Request[Any], tag="calc.anything"):
    what: str


class Swap(StreamRequest[int, str, bytes], tag="calc.swap"):
    pass


class Total(StreamRequest[list[str], Never, int | None], tag="calc.total"):
    to: int | None = None


def _requests() -> Iterator[type[Request[Any]]]:
    """Every request of the vocabulary, and a few whose types it does not use."""
    yield from (Add, Anything, Swap, Total)
    for info in pkgutil.iter_modules(rlm_wire.methods.__path__):
        module = importlib.import_module(f"rlm_wire.methods.{info.name}")
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, Request) and found.method:
                yield found


def _entries() -> Iterator[tuple[str, Any]]:
    """Each type that is decoded from a peer, with the name that an error calls it by."""
    for request in _requests():
        types = request_types(request)
        directions = {"result": types.result, "item": types.from_handler, "sent": types.from_caller}
        yield request.method, request
        for direction, type_ in directions.items():
            if type_ not in (None, Never):
                yield f"{request.method}.{direction}", type_


ENTRIES: Final = dict(_entries())
NAMES: Final = tuple(ENTRIES)

REACH: Final = Reach(
    lines={"rlm_wire.frames.codec": 50},
    functions=("Codec.decode_value", "describe"),
    marks=(*(f"{codec} {name}" for codec in CODEC_NAMES for name in ENTRIES), "refused"),
)


def run(data: bytes) -> None:
    choices = Choices(data)
    mode = choices.byte()
    codec = codec_named(CODEC_NAMES[mode & 1])
    name = NAMES[int.from_bytes((choices.byte(), choices.byte())) % len(NAMES)]
    if mode & 2:
        _check(codec, name, choices.rest())
    else:
        _check(codec, name, damaged(ENCODE[codec.name](plausible(ENTRIES[name], choices)), choices))


def _check(codec: Codec, name: str, encoded: bytes) -> None:
    type_ = ENTRIES[name]
    try:
        decoded = codec.decode_value(memoryview(encoded), type_, name)
    except CallError as error:
        _check_refusal(error)
        return
    REACH.mark(f"{codec.name} {name}")
    try:
        again = codec.encode(decoded)
    except CallError as error:
        check_listed(error)
        if type_ is not Any:  # which may be too deep, or have keys that the codec cannot write
            raise
        return
    assert codec.encode(codec.decode_value(again, type_, name)) == again, "the second encoding differs from the first"


def _check_refusal(error: CallError) -> None:
    """It blames the caller, and its words can be sent, whatever bytes they are about."""
    check_listed(error)
    assert error.code == "invalid_argument"
    assert len(error.message) < 1_000, "the peer's bytes come back at length"
    for each in CODEC_NAMES:
        codec_named(each).encode(Fail(1, error.code, error.message))
    REACH.mark("refused")


def plausible(type_: Any, choices: Choices) -> Any:
    """A value that may be of `type_`, or in one of sixteen cases any value at all."""
    if choices.byte() >= 240:
        return value(choices)
    return _of(msgspec.inspect.type_info(type_), choices)


def _of(info: msgspec.inspect.Type, choices: Choices) -> Any:
    match info:
        case msgspec.inspect.StructType():
            fields = (field for field in info.fields if field.required or choices.flag())
            tag = {} if info.tag_field is None else {info.tag_field: info.tag}
            return tag | {field.encode_name: _of(field.type, choices) for field in fields if choices.byte() < 250}
        case msgspec.inspect.UnionType():
            return _of(choices.pick(info.types), choices)
        case msgspec.inspect.LiteralType():
            return choices.pick((*info.values, ""))
        case msgspec.inspect.ListType():
            return [_of(info.item_type, choices) for _ in range(choices.byte() % 4)]
        case msgspec.inspect.DictType():
            return {_of(info.key_type, choices): _of(info.value_type, choices) for _ in range(choices.byte() % 4)}
        case msgspec.inspect.StrType():
            return choices.text()
        case msgspec.inspect.BytesType():
            return choices.blob()
        case msgspec.inspect.IntType():
            return choices.number()
        case msgspec.inspect.FloatType():
            return choices.number() / 8
        case msgspec.inspect.BoolType():
            return choices.flag()
        case msgspec.inspect.NoneType():
            return None
        case _:
            return value(choices)
