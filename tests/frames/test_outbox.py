"""What is sent next: lanes, order within a call, turns between calls, and what may be withdrawn."""

from __future__ import annotations

import pytest
from frames.joined import bodies

from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.credit import SendWindow
from rlm_wire.frames.limits import LARGE_SIZE, SLICE_SIZE, UNSLICED_LIMIT
from rlm_wire.frames.outbox import Outbox
from rlm_wire.frames.replay import ReplayBuffer
from rlm_wire.frames.schema import Part

ALL = 1 << 30
CODEC = codec_named("msgpack")


def outbox(*, replay: int = ALL, parts: int = ALL) -> tuple[Outbox, ReplayBuffer, SendWindow]:
    replay_buffer, window = ReplayBuffer(replay), SendWindow(parts)
    return Outbox(CODEC, replay_buffer, window), replay_buffer, window


def taken(out: Outbox, limit: int = ALL) -> list[bytes | Part]:
    """What leaves now; Parts decoded, other bodies as they are."""
    found: list[bytes | Part] = []
    for body in bodies(b"".join(out.take(limit))):
        part = CODEC.decode_frame_untrusted(body) if body[:2] == b"\x94\x17" else body
        assert isinstance(part, bytes | Part)
        found.append(part)
    return found


def large(letter: bytes, size: int) -> bytes:
    return letter * size


def test_control_frames_go_first_and_small_frames_in_order() -> None:
    """[R-5.1.2]"""
    out, _, _ = outbox()
    out.put(1, b"one")
    out.put(3, b"two")
    out.put_control(b"ping")
    assert taken(out) == [b"ping", b"one", b"two"]
    assert out.size == 0
    assert taken(out) == []


def test_small_frames_of_other_calls_overtake_a_large_one() -> None:
    out, _, _ = outbox()
    out.put(1, large(b"L", 1_000_000))
    assert len(taken(out, SLICE_SIZE)) == 1
    out.put(3, b"small")
    assert taken(out, SLICE_SIZE)[0] == b"small"


def test_within_a_call_nothing_overtakes_what_is_large() -> None:
    """[R-5.1.1]"""
    out, _, _ = outbox()
    out.put(1, large(b"a", LARGE_SIZE))
    out.put(1, large(b"b", LARGE_SIZE + 1))
    out.put(1, b"c")
    out.put(1, large(b"d", 200_000))
    out.put(1, b"e")
    out.put(3, b"other")
    order = taken(out)
    letters = [p.data[:1] if isinstance(p, Part) else p[:1] for p in order]
    assert letters == [b"a", b"o", b"b", b"c", b"d", b"d", b"d", b"d", b"e"]


def test_large_messages_of_different_calls_take_turns() -> None:
    """[R-5.2.3]"""
    out, _, _ = outbox()
    for call_id, letter in ((1, b"x"), (3, b"y")):
        out.put(call_id, large(letter, 3 * SLICE_SIZE))
    parts = [part for part in taken(out) if isinstance(part, Part)]
    assert [part.data[:1] for part in parts] == [b"x", b"y"] * 3
    assert [part.last for part in parts] == [False, False, False, False, True, True]
    assert len({part.id for part in parts}) == 2


@pytest.mark.parametrize(("size", "sliced"), [(SLICE_SIZE, False), (UNSLICED_LIMIT, False), (UNSLICED_LIMIT + 1, True)])
def test_only_what_is_too_large_for_a_frame_is_sliced(size: int, sliced: bool) -> None:
    """[R-5.2.1] [R-5.2.2]"""
    out, _, _ = outbox()
    out.put(1, large(b"s", size))
    pieces = taken(out)
    assert all(isinstance(piece, Part) is sliced for piece in pieces)
    assert sum(len(piece.data if isinstance(piece, Part) else piece) for piece in pieces) == size


def test_a_message_is_begun_only_when_the_window_covers_all_of_it() -> None:
    """[R-5.3.1]"""
    out, _, window = outbox(parts=250_000)
    out.put(1, large(b"x", 200_000))
    out.put(3, large(b"y", 100_000))
    assert {part.data[:1] for part in taken(out) if isinstance(part, Part)} == {b"x"}
    assert window.left == 50_000
    window.grant_untrusted(50_000)
    assert {part.data[:1] for part in taken(out) if isinstance(part, Part)} == {b"y"}
    assert window.left == 0


def test_a_message_that_must_wait_holds_up_no_other() -> None:
    out, _, _ = outbox(parts=100_000)
    out.put(1, large(b"x", 200_000))
    out.put(3, large(b"y", 100_000))
    out.put(5, large(b"z", 30_000))
    assert {p.data[:1] if isinstance(p, Part) else p[:1] for p in taken(out)} == {b"y", b"z"}


@pytest.mark.parametrize("size", [30_000, 200_000])
def test_nothing_leaves_beyond_the_replay_buffer(size: int) -> None:
    """[R-7.2.3]"""
    out, replay, _ = outbox(replay=100_000)
    for call_id in range(1, 20, 2):
        out.put(call_id, large(b"x", size))
        out.put(call_id + 100, large(b"s", 10_000))
    while out.size:
        assert taken(out), "stuck"
        assert replay.size <= 100_000
        replay.acknowledge_untrusted(replay.sent)


def test_a_call_that_has_not_begun_is_withdrawn_with_all_that_follows_it() -> None:
    """[R-6.6.3]"""
    out, _, window = outbox()
    out.put(1, large(b"x", 500_000), opens=True)
    out.put(1, b"item")
    assert out.withdraw(1)
    assert taken(out) == []
    assert (out.size, window.left) == (0, ALL)


def test_a_call_that_the_replay_buffer_held_up_gives_its_window_back_when_withdrawn() -> None:
    out, _, window = outbox(replay=70_000)
    out.put(3, large(b"s", 10_000))
    out.put(1, large(b"x", 500_000), opens=True)
    assert taken(out) == [large(b"s", 10_000)]
    assert out.withdraw(1)
    assert window.left == ALL


def test_of_a_call_that_has_begun_only_what_follows_is_withdrawn() -> None:
    out, _, _ = outbox()
    out.put(1, large(b"x", 200_000), opens=True)
    out.put(1, large(b"i", 300_000))
    first = taken(out, SLICE_SIZE)
    assert not out.withdraw(1)
    out.put(1, b"cancel")
    rest = [*first, *taken(out)]
    assert rest.pop() == b"cancel"
    assert b"".join(part.data for part in rest if isinstance(part, Part)) == large(b"x", 200_000)
    assert out.size == 0


def test_the_last_frame_follows_everything_else() -> None:
    out, _, _ = outbox()
    out.put(1, large(b"x", 200_000))
    out.put_last(b"goodbye")
    out.put_control(b"pong")
    order = []
    while pieces := taken(out, SLICE_SIZE):
        order += pieces
    assert order[0] == b"pong"
    assert order[-1] == b"goodbye"
    assert sum(len(p.data) for p in order if isinstance(p, Part)) == 200_000


@pytest.mark.parametrize(("replay", "parts"), [(ALL, 100_000), (70_000, ALL)])
def test_the_last_frame_does_not_wait_for_what_can_never_leave(replay: int, parts: int) -> None:
    out, _, _ = outbox(replay=replay, parts=parts)
    out.put(1, large(b"x", 200_000))
    out.put_last(b"goodbye")
    order = []
    while pieces := taken(out, SLICE_SIZE):
        order += pieces
    assert order[-1] == b"goodbye"
    assert out.size == 0


def test_what_has_not_left_whole_is_known() -> None:
    out, _, _ = outbox()
    out.put(1, large(b"x", 200_000))
    out.put(3, large(b"y", 300_000))
    taken(out, SLICE_SIZE)
    out.put(5, b"small")
    assert out.unsent() == [b"small", large(b"x", 200_000), large(b"y", 300_000)]


def test_dropping_all_leaves_whole_frames_only() -> None:
    out, _, _ = outbox()
    out.put(1, large(b"x", 200_000))
    taken(out, SLICE_SIZE)
    out.put(3, b"small")
    out.drop_all()
    out.put_last(b"goodbye")
    assert taken(out) == [b"goodbye"]
