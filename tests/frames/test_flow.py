"""Items, credit and Parts of a connection: what may be sent, what is given back, and that nothing gets stuck."""

from __future__ import annotations

from typing import Any

import pytest
from frames.joined import SMALLEST, accepted, connection, encoded, pair, pump, refused, sent

from rlm_wire.errors import CallError, LocalProtocolError
from rlm_wire.frames import limits as number
from rlm_wire.frames.events import CreditReceived, ItemReceived
from rlm_wire.frames.schema import (
    Ack,
    Call,
    Credit,
    Goodbye,
    Item,
    Part,
    Ping,
    Pong,
    Reply,
)

# ------------------------------------------------------------ items and credit


def test_items_stop_at_the_window_and_go_on_when_consumed() -> None:
    """[R-6.3.1] [R-6.3.2] [R-6.3.3]"""
    client, server = pair(item_window=100)
    call_id = client.call("m", None)
    while client.may_send_item(call_id):
        client.send_item(call_id, "x" * 30)
    with pytest.raises(LocalProtocolError, match="no credit"):
        client.send_item(call_id, "x")
    _, (_, *items) = pump(client, server)
    assert len(items) == 3  # 34 or 35 bytes each, with their envelope
    assert pump(client, server) == ([], [])
    for item in items:
        assert isinstance(item, ItemReceived)
        server.consumed(call_id, item)
    back, _ = pump(client, server)
    assert back
    assert set(back) == {CreditReceived(call_id)}
    assert client.may_send_item(call_id)


def test_an_item_beyond_the_window_is_refused() -> None:
    """[R-6.3.1]"""
    server = connection(client=False, item_window=10)
    frames = [Call(1, "m", None), Item(1, "x" * 20), Item(1, None)]
    assert refused(server, *frames)[0] == "resource_exhausted"


def test_credit_that_is_absurd_is_refused() -> None:
    """[R-6.3.6]"""
    for call_id in (0, 1):
        client = connection(client=True)
        client.call("m", None)
        sent(client)
        assert "credit" in refused(client, Credit(call_id, number.HIGHEST_ID))[1]


def test_an_item_that_cannot_be_sent_costs_nothing() -> None:
    client = connection(client=True, item_window=1_000)
    call_id = client.call("m", None)
    for value in (object(), bytes(17 << 20)):
        with pytest.raises(CallError):
            client.send_item(call_id, value)
    assert client.may_send_item(call_id)
    client.send_item(call_id, 1)
    assert [type(frame) for frame in sent(client)] == [Call, Item]


# ---------------------------------------------------------------------- parts


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_large_messages_cross_in_parts_with_the_smallest_limits(codec: str) -> None:
    """[R-5.2.1] [R-5.2.4] [R-7.2.1]"""
    client, server = pair(codec, **{**SMALLEST, "message": 150_000, "replay": 150_000, "reassembly": 150_000})
    for size in (60_000, 66_600, 100_000):
        call_id = client.call("m", b"x" * size)
        _, (call,) = pump(client, server)
        assert isinstance(call, Call)
        server.reply(call_id, b"y" * size)
        (reply,), _ = pump(client, server)
        assert isinstance(reply, Reply)


def test_many_frames_never_wait_for_an_ack_that_is_not_due() -> None:
    """[R-7.2.1] With the smallest replay buffer, an Ack must come before the next frame needs its room."""
    client, server = pair(**SMALLEST)
    for _ in range(20):
        client.call("m", bytes(40_000))
    _, there = pump(client, server)
    assert len(there) == 20


def test_a_message_beyond_the_limit_fails_its_sender_only() -> None:
    """[R-5.3.5]"""
    client, server = pair()
    with pytest.raises(CallError, match="stream it") as caught:
        client.call("m", bytes(number.MESSAGE_LIMIT))
    assert caught.value.code == "resource_exhausted"
    assert caught.value.data == {"bytes": number.MESSAGE_LIMIT + 13, "limit": number.MESSAGE_LIMIT}
    call_id = client.call("m", bytes(number.MESSAGE_LIMIT - 13))
    pump(client, server)
    with pytest.raises(CallError):
        server.reply(call_id, bytes(number.MESSAGE_LIMIT))
    server.reply(call_id, None)


def parts_of(frame: Any, size: int, part_id: int = 1) -> list[Part]:
    body = encoded(frame)[4:]
    cuts = range(0, len(body), size)
    return [Part(part_id, cut + size >= len(body), body[cut : cut + size]) for cut in cuts]


@pytest.mark.parametrize("frame", [Ping(1), Pong(1), Ack(0), Goodbye("", ""), Part(2, True, b"x")])
def test_what_must_not_be_sliced_is_refused_in_parts(frame: Any) -> None:
    """[R-5.2.5]"""
    assert "must not be sliced" in refused(connection(client=True), *parts_of(frame, 2))[1]


def test_a_call_in_parts_returns_the_window_at_once_and_is_acknowledged() -> None:
    """[R-5.3.3] [R-7.2.1]"""
    server = connection(client=False)
    parts = parts_of(Call(1, "m", bytes(300_000)), 65_536)
    accepted(server, *parts)
    size = sum(len(part.data) for part in parts)
    assert sent(server) == [Ack(len(parts)), Credit(0, size)]


def test_an_item_in_parts_returns_the_window_when_it_is_consumed() -> None:
    """[R-5.3.3]"""
    server = connection(client=False)
    _, item = accepted(server, Call(1, "m", None), *parts_of(Item(1, bytes(300_000)), 65_536))
    assert [frame for frame in sent(server) if isinstance(frame, Credit)] == []
    server.consumed(1, item)
    assert Credit(0, item.size) in sent(server)


@pytest.mark.parametrize("end", ["reply", "fail"])
def test_items_that_nobody_will_consume_return_the_window_when_their_call_ends(end: str) -> None:
    """[R-5.3.3] Else each call that leaves items behind would narrow the window of all."""
    server = connection(client=False)
    _, item = accepted(server, Call(1, "m", None), *parts_of(Item(1, bytes(300_000)), 65_536))
    if end == "reply":
        server.reply(1, None)
    else:
        server.fail(1, CallError("cancelled", ""))
    assert Credit(0, item.size) in sent(server)
    server.consumed(1, item)
    assert sent(server) == []


def test_a_late_item_in_parts_returns_the_window() -> None:
    """[R-5.3.3]"""
    server = connection(client=False)
    accepted(server, Call(1, "m", None))
    server.reply(1, None)
    sent(server)
    item = Item(1, bytes(300_000))
    assert accepted(server, *parts_of(item, 65_536)) == []
    assert Credit(0, len(encoded(item)) - 4) in sent(server)
