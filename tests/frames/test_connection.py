"""One side of a session: what it sends for what it is asked to do, and what it makes of what it receives."""

from __future__ import annotations

from typing import Any

import pytest
from frames.joined import SMALLEST, accepted, connection, encoded, pair, pump, receive, refused, sent

from rlm_wire.errors import CallError, LocalProtocolError, SessionLost
from rlm_wire.frames import limits as number
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.events import Ended, ItemReceived
from rlm_wire.frames.schema import (
    Ack,
    Call,
    Cancel,
    Close,
    Credit,
    Fail,
    Goodbye,
    Item,
    Ping,
    Pong,
    Reply,
)

# ------------------------------------------------------------------------ ids


def test_ids_are_odd_from_the_client_and_even_from_the_server() -> None:
    """[R-6.2.1]"""
    client, server = pair()
    assert [client.call("m", None) for _ in range(3)] == [1, 3, 5]
    assert [server.call("m", None) for _ in range(3)] == [2, 4, 6]


def test_a_call_with_the_receivers_parity_is_refused() -> None:
    """[R-6.2.1]"""
    for client, call_id in ((True, 1), (False, 2)):
        assert refused(connection(client=client), Call(call_id, "m", None))[0] == "invalid_argument"


def test_an_id_in_use_is_refused() -> None:
    """[R-6.2.2]"""
    server = connection(client=False)
    assert "in use" in refused(server, Call(1, "m", None), Call(1, "m", None))[1]


def test_a_call_too_many_fails_alone() -> None:
    """[R-6.2.3]"""
    server = connection(client=False, calls=2)
    events = accepted(server, *(Call(i, "m", None) for i in (1, 3, 5)), Item(5, None), Cancel(5))
    assert [event.id for event in events] == [1, 3]
    (fail,) = sent(server)
    assert (type(fail), fail.id, fail.code, fail.retryable) == (Fail, 5, "resource_exhausted", True)
    server.reply(1, None)
    assert [event.id for event in accepted(server, Call(7, "m", None))] == [7]


def test_a_caller_keeps_to_the_limit_itself() -> None:
    client = connection(client=True, calls=1)
    client.call("m", None)
    with pytest.raises(CallError, match="in flight") as caught:
        client.call("m", None)
    assert caught.value.retryable


# ---------------------------------------------------------------- a call's life


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_a_call_its_items_and_its_reply_cross(codec: str) -> None:
    client, server = pair(codec)
    call_id = client.call("m", {"x": 1}, scope="s", deadline=2.5, flags=1)
    client.send_item(call_id, "up")
    client.close_sending(call_id)
    _, there = pump(client, server)
    call, item, close = there
    assert isinstance(call, Call)
    assert (call.id, call.method, call.scope, call.deadline, call.flags) == (1, "m", "s", 2.5, 1)
    assert isinstance(item, ItemReceived)
    assert type(close) is Close
    server.send_item(call_id, "down")
    server.reply(call_id, [1])
    (item, reply), _ = pump(client, server)
    assert isinstance(item, ItemReceived)
    assert client.codec.decode_value(item.value, str, "item") == "down"
    assert client.codec.decode_value(reply.result, list[int], "result") == [1]  # type: ignore[union-attr]


def test_only_an_open_call_of_the_peer_is_answered_and_only_once() -> None:
    """[R-6.4.1]"""
    client, server = pair()
    ours = client.call("m", None)
    pump(client, server)
    for core, call_id in ((client, ours), (server, 99), (server, 2)):
        with pytest.raises(LocalProtocolError):
            core.reply(call_id, None)
        with pytest.raises(LocalProtocolError):
            core.fail(call_id, CallError("internal", ""))
    server.reply(ours, None)
    with pytest.raises(LocalProtocolError):
        server.reply(ours, None)
    assert [type(frame) for frame in sent(server)] == [Reply]


@pytest.mark.parametrize("end", [Reply(1, None), Fail(1, "internal", "", None)])
def test_an_end_for_a_call_never_made_is_refused(end: Any) -> None:
    """[R-6.4.2]"""
    assert "never made" in refused(connection(client=True), end)[1]
    assert "never made" in refused(connection(client=False), end)[1]


@pytest.mark.parametrize(
    "frame", [Reply(1, None), Fail(1, "internal", "", None), Item(1, None), Close(1), Credit(1, 5)]
)
def test_frames_of_a_call_that_has_ended_are_late_and_ignored(frame: Any) -> None:
    """[R-6.5.1]"""
    client = connection(client=True)
    client.call("m", None)
    accepted(client, Reply(1, None))
    assert accepted(client, frame) == []
    assert not [late for late in sent(client) if not isinstance(late, Call)]


@pytest.mark.parametrize("frame", [Item(1, None), Close(1), Credit(1, 5), Cancel(1)])
def test_frames_of_a_call_that_was_answered_are_late_and_ignored(frame: Any) -> None:
    """[R-6.5.1]"""
    server = connection(client=False)
    accepted(server, Call(1, "m", None))
    server.reply(1, None)
    assert accepted(server, frame) == []


def test_an_item_for_a_call_never_made_is_refused() -> None:
    """[R-6.4.2]"""
    assert "never made" in refused(connection(client=True), Item(1, None))[1]


def test_an_item_or_a_close_after_close_or_cancel_is_refused() -> None:
    """[R-6.3.5] [R-6.6.2]"""
    for first in (Close(1), Cancel(1)):
        for second in (Item(1, None), Close(1)):
            assert "cannot receive" in refused(connection(client=False), Call(1, "m", None), first, second)[1]
    client = connection(client=True)
    client.close_sending(client.call("m", None))
    with pytest.raises(LocalProtocolError):
        client.send_item(1, None)


# --------------------------------------------------------------------- cancel


def test_a_cancelled_call_stays_open_until_it_is_answered() -> None:
    """[R-6.6.1]"""
    client, server = pair()
    call_id = client.call("m", None)
    assert not client.cancel(call_id, "enough")
    _, there = pump(client, server)
    assert there[-1] == Cancel(call_id, "enough")
    server.send_item(call_id, "late news")
    server.reply(call_id, "partial")
    back, _ = pump(client, server)
    assert [type(event) for event in back] == [ItemReceived, Reply]


def test_a_second_cancel_goes_unsaid() -> None:
    client = connection(client=True)
    call_id = client.call("m", None)
    for _ in range(3):
        assert not client.cancel(call_id)
    assert [type(frame) for frame in sent(client)] == [Call, Cancel]


def test_a_call_that_has_ended_may_be_cancelled_before_its_user_knows() -> None:
    client = connection(client=True)
    client.call("m", None)
    sent(client)
    accepted(client, Item(1, "one that its user will not like"), Reply(1, None))
    assert not client.cancel(1)
    assert sent(client) == []
    with pytest.raises(LocalProtocolError):
        client.cancel(3)


def test_a_cancel_after_a_cancel_is_harmless() -> None:
    """[R-6.6.1]"""
    server = connection(client=False)
    accepted(server, Call(1, "m", None), Cancel(1), Cancel(1))


def test_a_cancel_of_the_receivers_own_call_is_refused() -> None:
    """[R-6.6.5]"""
    server = connection(client=False)
    server.call("m", None)
    assert "not the peer's own" in refused(server, Cancel(2))[1]
    other = connection(client=False)
    accepted(other, Call(1, "m", None))
    with pytest.raises(LocalProtocolError):
        other.cancel(1)


def test_a_call_whose_bytes_have_not_begun_to_leave_is_dropped_unsent() -> None:
    """[R-6.6.3]"""
    client = connection(client=True)
    call_id = client.call("m", bytes(1_000_000))
    assert client.cancel(call_id)
    assert sent(client) == []
    assert client.queued == 0
    assert not client.cancel(call_id)
    assert client.call("m", None) == 3
    assert [type(frame) for frame in sent(client)] == [Call]


def test_a_cancel_follows_its_half_sent_call_and_drops_the_items_behind_it() -> None:
    """[R-6.6.3]"""
    client, server = pair()
    call_id = client.call("m", bytes(200_000))
    first = b"".join(client.data_to_send(1))
    client.send_item(call_id, bytes(300_000))
    assert not client.cancel(call_id)
    there = [*receive(server, first), *pump(client, server)[1]]
    assert [type(event) for event in there] == [Call, Cancel]


def test_a_cancel_does_not_wait_for_the_part_window() -> None:
    client, server = pair(**{**SMALLEST, "message": 200_000, "replay": 400_000, "reassembly": 250_000})
    hog, call_id = client.call("m", None), client.call("m", None)
    client.send_item(hog, bytes(190_000))
    client.send_item(call_id, bytes(190_000))
    _, there = pump(client, server)  # nobody consumes: the second item cannot leave
    assert [type(event) for event in there] == [Call, Call, ItemReceived]
    client.cancel(call_id)
    assert pump(client, server)[1] == [Cancel(call_id)]


# ------------------------------------------------------------ Ack, Ping, limits


def test_an_ack_is_due_after_so_many_frames_or_bytes() -> None:
    """[R-7.1.1] [R-7.2.1]"""
    server = connection(client=False)
    accepted(server, *(Call(2 * i + 1, "m", None) for i in range(number.ACK_FRAMES - 1)), Ping(1), Ack(0))
    assert sent(server) == [Pong(1)]
    accepted(server, Close(1))
    assert sent(server) == [Ack(number.ACK_FRAMES)]
    enough = number.ACK_BYTES // 60_000 + 1
    accepted(server, *(Call(99_999 + 2 * i, "m", bytes(60_000)) for i in range(enough)))
    assert sent(server) == [Ack(number.ACK_FRAMES + enough)]


@pytest.mark.parametrize("received", [2, number.HIGHEST_ID])
def test_an_ack_of_what_was_not_sent_is_refused(received: int) -> None:
    """[R-7.2.2]"""
    client = connection(client=True)
    client.call("m", None)
    sent(client)
    assert "Ack of" in refused(client, Ack(received))[1]


def test_an_ack_that_goes_back_is_refused() -> None:
    """[R-7.2.2]"""
    client = connection(client=True)
    client.call("m", None)
    sent(client)
    assert "Ack of" in refused(client, Ack(1), Ack(0))[1]


def test_a_ping_is_answered_with_its_token_ahead_of_everything() -> None:
    """[R-4.3.1]"""
    server = connection(client=False)
    server.call("m", None)
    accepted(server, Ping(77))
    assert [type(frame) for frame in sent(server)] == [Pong, Call]
    assert accepted(server, Pong(5)) == [Pong(5)]


def test_a_peer_that_sends_and_does_not_read_is_dropped() -> None:
    """[R-8.4.1]"""
    server = connection(client=False)
    flood = encoded(Ping(1)) * (number.QUEUED_FRAMES_LIMIT + 1)
    *_, ended = receive(server, flood)
    assert isinstance(ended, Ended)
    assert ended.error is not None
    assert ended.error.code == "resource_exhausted"


def test_the_lower_limit_of_both_sides_is_in_force() -> None:
    """[R-8.3.1]"""
    ours = number.Limits(message=1_000_000, calls=5, frame=100_000)
    theirs = number.Limits(message=2_000_000, calls=3, frame=200_000, item_window=7)
    core = Connection(client=True, codec=connection(client=True).codec, ours=ours, theirs=theirs)
    assert (core.limits.message, core.limits.calls, core.limits.item_window) == (1_000_000, 3, 7)
    assert refused(core, Call(2, "m", bytes(100_001)))[0] == "resource_exhausted"


# ------------------------------------------------------------------------ end


def test_a_goodbye_follows_everything_and_nothing_follows_it() -> None:
    """[R-4.4.1]"""
    client, server = pair()
    client.call("m", bytes(500_000))
    client.call("m", None)
    client.goodbye()
    with pytest.raises(SessionLost) as caught:
        client.call("m", None)
    assert caught.value.fate == "not_sent"
    _, there = pump(client, server)
    assert [type(event) for event in there] == [Call, Call, Ended]
    assert there[-1] == Ended(None)


def test_nothing_behind_a_goodbye_is_looked_at() -> None:
    """[R-4.4.2]"""
    server = connection(client=False)
    (ended,) = receive(server, encoded(Goodbye("unavailable", "maintenance"), Call(1, "m", None)) + b"\xff" * 100)
    assert isinstance(ended, Ended)
    assert "maintenance" in str(ended.error)
    assert sent(server) == []


def test_a_violation_drops_what_was_queued_and_says_why() -> None:
    """[R-9.2.1]"""
    server = connection(client=False)
    server.call("m", bytes(1_000_000))
    code, message = refused(server, Call(2, "m", None))
    assert code == "invalid_argument"
    assert "parity" in message


def test_events_before_a_violation_are_told() -> None:
    server = connection(client=False)
    events = receive(server, encoded(Call(1, "m", None), Call(2, "m", None), Call(3, "m", None)))
    assert [type(event) for event in events] == [Call, Ended]


def test_the_end_of_the_stream_without_goodbye_is_a_loss() -> None:
    """[R-2.4.1]"""
    server = connection(client=False)
    receive(server, b"\x00\x00\x00\x09half")
    ended = server.end_of_stream()
    assert isinstance(ended.error, SessionLost)
    assert "in the middle of a frame" in str(ended.error)


def test_the_fate_of_a_call_is_what_is_known_of_it() -> None:
    """[R-7.4.1]"""
    client, server = pair()
    answering, accepting, silent = (client.call("m", None) for _ in range(3))
    pump(client, server)
    server.send_item(answering, 1)
    client.send_item(accepting, "x" * 600_000)
    _, at_server = pump(client, server)
    server.consumed(accepting, at_server[-1])
    pump(client, server)
    half = client.call("m", bytes(500_000))
    client.data_to_send(1)
    queued = client.call("m", None)
    assert client.fates() == {
        answering: "executed", accepting: "executed", silent: "maybe_executed", half: "not_sent", queued: "not_sent",
    }  # fmt: skip


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@pytest.mark.parametrize("text", ["\ud800", "\0", "é", "\U0001f600", '"', "\\"])
def test_text_of_any_length_and_kind_fits_one_frame(text: str, codec: str) -> None:
    """[R-9.1.2]"""
    client, server = pair(codec, **SMALLEST)
    call_id = client.call("m", None)
    pump(client, server)
    server.fail(call_id, CallError("internal", text * 1_000_000, data=object()))
    (fail,), _ = pump(client, server)
    assert isinstance(fail, Fail)
    assert fail.data in (b"\xc0", b"null")
    server.goodbye("internal", text * 1_000_000)
    (ended,), _ = pump(client, server)
    assert isinstance(ended, Ended)


def test_a_deadline_that_has_passed_is_sent_as_none_left() -> None:
    client = connection(client=True)
    for deadline in (-1.0, float("nan"), 0.0):
        client.call("m", None, deadline=deadline)
    assert [frame.deadline for frame in sent(client) if isinstance(frame, Call)] == [0.0, 0.0, 0.0]
