"""Parts become messages, within the window, whatever order the messages' Parts come in."""

from __future__ import annotations

import pytest
from frames.joined import SMALLEST

from rlm_wire.errors import RemoteProtocolError
from rlm_wire.frames.assembly import Assembly
from rlm_wire.frames.limits import SLICE_SIZE, Limits
from rlm_wire.frames.schema import Part


def test_parts_of_several_messages_interleave() -> None:
    """[R-5.2.3]"""
    assembly = Assembly(Limits())
    assert assembly.add_untrusted(Part(1, False, b"a")) is None
    assert assembly.add_untrusted(Part(2, False, b"x")) is None
    assert assembly.add_untrusted(Part(1, False, b"b")) is None
    assert assembly.add_untrusted(Part(2, True, b"y")) == b"xy"
    assert assembly.add_untrusted(Part(1, True, b"c")) == b"abc"


def test_an_empty_part_is_refused() -> None:
    """[R-5.2.3]"""
    with pytest.raises(RemoteProtocolError, match="empty"):
        Assembly(Limits()).add_untrusted(Part(1, True, b""))


def test_a_message_beyond_its_limit_is_refused_at_the_part_that_passes_it() -> None:
    """[R-5.3.5]"""
    assembly = Assembly(Limits(**SMALLEST))
    assembly.add_untrusted(Part(1, False, bytes(66_560)))
    with pytest.raises(RemoteProtocolError, match="beyond 66560 bytes") as caught:
        assembly.add_untrusted(Part(1, False, b"x"))
    assert caught.value.code == "resource_exhausted"


def test_the_window_counts_what_is_half_here_and_what_is_not_consumed() -> None:
    """[R-5.3.2]"""
    assembly = Assembly(Limits(**{**SMALLEST, "message": 100_000, "reassembly": 140_000}))
    assembly.add_untrusted(Part(1, False, bytes(60_000)))
    assembly.add_untrusted(Part(2, True, bytes(60_000)))
    with pytest.raises(RemoteProtocolError, match="beyond the window") as caught:
        assembly.add_untrusted(Part(1, True, bytes(20_001)))
    assert caught.value.code == "resource_exhausted"
    assembly.consumed(1)
    assembly.add_untrusted(Part(1, True, bytes(20_001)))


def test_messages_that_are_begun_and_not_ended_are_few() -> None:
    """[R-5.3.4] A million messages of one byte each would cost a hundred times their bytes."""
    limits = Limits()
    assembly = Assembly(limits)
    for number in range(limits.reassembly // SLICE_SIZE):
        assembly.add_untrusted(Part(number + 1, False, b"x"))
    with pytest.raises(RemoteProtocolError, match="too many messages") as caught:
        assembly.add_untrusted(Part(9_999, False, b"x"))
    assert caught.value.code == "resource_exhausted"
    assembly.add_untrusted(Part(1, True, b"x"))
    assembly.add_untrusted(Part(9_999, False, b"x"))
