"""Windows of items: never beyond, never stuck, growing only while the reader keeps up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_wire.errors import RemoteProtocolError
from rlm_wire.frames.credit import ReceiveWindow, SendWindow
from rlm_wire.frames.limits import CREDIT_BYTES, HIGHEST_ID, ITEM_WINDOW_LIMIT


def test_one_item_may_go_beyond_the_window_and_no_second() -> None:
    """[R-6.3.1]"""
    window = ReceiveWindow(100)
    window.receive_untrusted(99, 1)
    window.receive_untrusted(5_000, 1)
    with pytest.raises(RemoteProtocolError, match="beyond the window") as caught:
        window.receive_untrusted(1, 1)
    assert caught.value.code == "resource_exhausted"


def test_credit_comes_in_halves_of_the_window() -> None:
    """[R-6.3.4]"""
    window = ReceiveWindow(100)
    window.receive_untrusted(90, 1)
    assert window.consume(49, 0) == (0, 0)
    assert window.consume(1, 0) == (50, 0)


def test_credit_of_a_large_window_comes_before_half_of_it_is_used() -> None:
    window = ReceiveWindow(ITEM_WINDOW_LIMIT)
    window.receive_untrusted(CREDIT_BYTES, 1)
    assert window.consume(CREDIT_BYTES, 0) == (CREDIT_BYTES, 0)


def test_a_window_that_is_used_up_gets_credit_for_the_first_byte_consumed() -> None:
    """[R-6.3.4]"""
    window = ReceiveWindow(100)
    window.receive_untrusted(1, 1)
    window.receive_untrusted(1_000, 1)
    assert window.consume(1, 0) == (1, 0)


def test_a_window_grows_for_a_reader_that_keeps_up_up_to_what_is_left() -> None:
    window = ReceiveWindow(100)
    window.receive_untrusted(60, 1)
    assert window.consume(60, 1_000) == (160, 100)
    assert window.size == 200
    window.receive_untrusted(100, 1)
    assert window.consume(100, 7) == (107, 7)


def test_a_window_grows_although_half_of_it_ends_within_a_batch_of_small_items() -> None:
    window = ReceiveWindow(100)
    window.receive_untrusted(30, 1)
    assert window.consume(30, 1_000) == (0, 0)
    window.receive_untrusted(20, 1)
    window.receive_untrusted(20, 1)
    assert window.consume(20, 1_000) == (150, 100)


def test_a_window_does_not_grow_for_a_reader_that_lags() -> None:
    window = ReceiveWindow(100)
    window.receive_untrusted(60, 1)
    window.receive_untrusted(10, 1)
    assert window.consume(60, 1_000) == (60, 0)


def test_a_window_never_grows_beyond_its_limit() -> None:
    window = ReceiveWindow(ITEM_WINDOW_LIMIT)
    window.receive_untrusted(ITEM_WINDOW_LIMIT, 1)
    assert window.consume(ITEM_WINDOW_LIMIT, HIGHEST_ID) == (ITEM_WINDOW_LIMIT, 0)


def test_credit_beyond_any_window_is_refused() -> None:
    """[R-6.3.6]"""
    window = SendWindow(1)
    window.grant_untrusted(HIGHEST_ID - 1)
    with pytest.raises(RemoteProtocolError):
        window.grant_untrusted(1)


@settings(deadline=None)
@given(st.integers(1, 50), st.lists(st.integers(1, 120), max_size=60), st.integers(0, 200))
def test_a_sender_is_never_stuck_once_all_is_consumed(size: int, items: list[int], growth: int) -> None:
    """[R-6.3.4]"""
    sender, receiver = SendWindow(size), ReceiveWindow(size)
    waiting: list[int] = []

    def consume() -> None:
        nonlocal growth
        amount, grown = receiver.consume(waiting.pop(0), growth)
        growth -= grown
        sender.left += amount
        assert sender.left == receiver.left

    for item in items:
        while sender.left <= 0:
            assert waiting
            consume()
        sender.spend(item)
        receiver.receive_untrusted(item, 1)
        waiting.append(item)
    while waiting:
        consume()
    assert sender.left > 0
