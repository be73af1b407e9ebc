"""What is sent stays until it is acknowledged, within its bytes."""

from __future__ import annotations

import pytest

from rlm_wire.errors import RemoteProtocolError
from rlm_wire.frames.replay import ReplayBuffer


def test_frames_stay_in_order_until_acknowledged() -> None:
    replay = ReplayBuffer(100)
    for body in (b"one", b"two", b"three"):
        replay.keep(len(body), b"head", body)
    replay.acknowledge_untrusted(1)
    assert replay.unacknowledged() == [b"head", b"two", b"head", b"three"]
    assert replay.size == 8
    replay.acknowledge_untrusted(3)
    assert replay.unacknowledged() == []
    assert replay.size == 0


def test_there_is_room_up_to_the_limit_and_for_anything_when_empty() -> None:
    """[R-7.2.3]"""
    replay = ReplayBuffer(10)
    assert replay.has_room(1_000)
    replay.keep(6, b"xxxxxx")
    assert replay.has_room(4)
    assert not replay.has_room(5)
    replay.acknowledge_untrusted(1)
    assert replay.has_room(1_000)


def test_an_ack_of_more_than_was_sent_or_less_than_before_is_refused() -> None:
    """[R-7.2.2]"""
    replay = ReplayBuffer(10)
    replay.keep(1, b"x")
    replay.keep(1, b"y")
    replay.acknowledge_untrusted(1)
    for received in (0, 3):
        with pytest.raises(RemoteProtocolError, match="2 sent, 1 acknowledged"):
            replay.acknowledge_untrusted(received)
    replay.acknowledge_untrusted(1)
    replay.acknowledge_untrusted(2)
