"""Nesting is measured right for both codecs, without recursion, and in one pass over whatever is sent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_wire.frames.limits import NESTING_LIMIT
from rlm_wire.frames.nesting import is_json_nested_too_deeply, is_msgpack_nested_too_deeply

leaves = (
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=40) | st.floats(allow_nan=False) | st.booleans()
)
values = st.recursive(
    leaves | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=60,
)


def nested(value: Any, levels: int, form: str) -> Any:
    for _ in range(levels):
        value = [value] if form == "list" else {"k": value} if form == "map" else [0] * 20 + [value, "x" * 70]
    return value


@pytest.mark.parametrize("form", ["list", "map", "wide"])
@settings(max_examples=30, deadline=None)
@given(value=values)
def test_the_limit_is_exact(form: str, value: Any) -> None:
    """[R-8.1.1]"""
    for levels, deep in ((NESTING_LIMIT - 1, False), (NESTING_LIMIT, True)):
        bomb = nested([1, value] if deep else 1, levels, form)
        assert is_msgpack_nested_too_deeply(msgspec.msgpack.encode(bomb)) is deep
        assert is_json_nested_too_deeply(msgspec.json.encode(bomb)) is deep


@pytest.mark.parametrize("empty", [[], {}])
def test_an_empty_container_is_a_level_in_both_codecs(empty: Any) -> None:
    """[R-8.1.1] MessagePack's check took one at the limit for a leaf, so what one side sent another could refuse."""
    for levels, deep in ((NESTING_LIMIT - 1, False), (NESTING_LIMIT, True)):
        for form in ("list", "wide"):
            bomb = nested(empty, levels, form)
            assert is_msgpack_nested_too_deeply(msgspec.msgpack.encode(bomb)) is deep
            assert is_json_nested_too_deeply(msgspec.json.encode(bomb)) is deep


@settings(max_examples=50, deadline=None)
@given(values)
def test_what_is_shallow_passes(value: Any) -> None:
    assert not is_msgpack_nested_too_deeply(msgspec.msgpack.encode(value))
    assert not is_json_nested_too_deeply(msgspec.json.encode(value))


@settings(deadline=None)
@given(st.lists(st.sampled_from(["[", "]", "{", '"', "\\", "\\\\", '\\"', "é"]), max_size=300).map("".join))
def test_brackets_in_strings_do_not_count(text: str) -> None:
    assert not is_json_nested_too_deeply(json.dumps([text, {text: 1}]).encode())


@pytest.mark.parametrize(
    "header", [b"\x91", b"\x81\x01", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01", b"\xde\x00\x01\x01"]
)
def test_b47_a_bomb_of_any_container_is_found(header: bytes) -> None:
    """[R-8.1.1]"""
    assert is_msgpack_nested_too_deeply(header * 250_000 + b"\xc0")
    assert is_msgpack_nested_too_deeply(header * (NESTING_LIMIT + 1))


@pytest.mark.parametrize(
    "body", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdc\xff"]
)
def test_b46_lengths_that_promise_too_much_cost_nothing(body: bytes) -> None:
    for padded in (body, b"\x00" * 2000 + body, b"\xdd\x7f\xff\xff\xff" + b"\x00" * 2000 + body):
        assert not is_msgpack_nested_too_deeply(padded)


def test_a_string_without_an_end_hides_what_is_in_it_and_is_read_once() -> None:
    """Trying again at each quote of an unfinished string took 20 s for the 64 KiB that a stranger may send."""
    assert not is_json_nested_too_deeply(b'"' + b"[" * 100)
    assert not is_json_nested_too_deeply(b"[]" * 65 + b'"' + b'\\"' * 4_000_000)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_garbage_is_left_to_the_decoder(body: bytes) -> None:
    is_msgpack_nested_too_deeply(body)
    is_json_nested_too_deeply(body)
