"""A session goes on over another stream: who may have it, and what is sent again."""

from __future__ import annotations

import hmac
from typing import Any

import pytest
from frames.joined import bodies, encoded, pair, pump, receive, sent
from frames.test_handshake import TOKEN, feed, frames, shake, side

from rlm_wire.errors import AuthenticationError, HandshakeError, RemoteProtocolError
from rlm_wire.frames.framing import ReceiveBuffer
from rlm_wire.frames.handshake import ClientHandshake, Established, Resumption, ServerHandshake, Side
from rlm_wire.frames.limits import Limits
from rlm_wire.frames.schema import Ack, Call, Part, Reply, Resume

SECRET = bytes(range(100, 132))
PRIVATE = side(private=True)
SHARED = side(token=TOKEN)


class Held:
    """A session as a server holds it."""

    def __init__(self, established: Established, limits: Limits = Limits(), received: int = 0) -> None:  # noqa: B008
        self.secret = established.secret
        self.version = established.version
        self.codec = established.codec
        self.limits = limits
        self.received = received
        self.taken: list[Resume] = []

    def take_over(self, resume: Resume) -> int:
        if resume.received > 9:
            raise RemoteProtocolError("impossible")
        self.taken.append(resume)
        return self.received


def begun(ours: Side) -> Established:
    """What both sides have of a session that began between two of `ours`."""
    client, server = ClientHandshake(ours), ServerHandshake(ours, session="s-1", secret=SECRET)
    shake(client, server)
    assert isinstance(client.outcome, Established)
    assert isinstance(server.outcome, Established)
    assert client.outcome.secret == server.outcome.secret != b""
    return client.outcome


def resumed(ours: Side, wish: Resumption, held: Held | None, theirs: Side | None = None) -> tuple[Any, Any]:
    client = ClientHandshake(ours, resume=wish)
    server = ServerHandshake(theirs or ours, session="s-2", lookup={"s-1": held}.get)
    shake(client, server)
    return client.outcome, server.outcome


@pytest.mark.parametrize("ours", [PRIVATE, SHARED], ids=["private", "token"])
def test_a_session_is_resumed_by_its_secret(ours: Side) -> None:
    """[R-7.3.2] [R-7.3.3] [R-7.3.6]"""
    before = begun(ours)
    held = Held(before, received=5)
    at_client, at_server = resumed(ours, Resumption(before, 3, 1), held)
    assert isinstance(at_client, Established)
    assert (at_client.session, at_client.received, at_client.secret, at_client.resumed) == (
        "s-1",
        5,
        before.secret,
        True,
    )
    assert (at_server.session, at_server.received, at_server.secret, at_server.resumed) == (
        "s-1",
        3,
        before.secret,
        True,
    )
    assert held.taken == [Resume("s-1", 3, 1)]


def test_the_secret_of_a_session_with_token_never_crosses_the_wire() -> None:
    """[R-7.3.1]"""
    client, server = ClientHandshake(SHARED), ServerHandshake(SHARED, session="s", secret=SECRET)
    hello = b"".join(client.data_to_send())
    feed(server, hello)
    challenge = b"".join(server.data_to_send())
    feed(client, challenge)
    feed(server, b"".join(client.data_to_send()))
    message = b"rlm-wire/1 session"
    for part in (bodies(hello[8:])[0], bodies(challenge[8:])[0], b""):
        message += len(part).to_bytes(4, "big") + part
    assert isinstance(server.outcome, Established)
    assert server.outcome.secret == hmac.digest(TOKEN, message, "sha256")
    assert frames(server)[0][5] == ""
    assert SECRET.hex() not in repr(begun(PRIVATE))


@pytest.mark.parametrize("ours", [PRIVATE, SHARED], ids=["private", "token"])
def test_a_stolen_session_id_is_worth_nothing(ours: Side) -> None:
    """[R-7.3.4]"""
    before = begun(ours)
    thief = Established(1, "msgpack", Limits(), [], "thief", before.session, b"guessed")
    held = Held(before)
    at_client, at_server = resumed(ours, Resumption(thief, 0, 9), held)
    assert isinstance(at_client, AuthenticationError)
    assert isinstance(at_server, AuthenticationError)
    assert held.taken == []


def test_the_token_is_asked_for_before_the_session() -> None:
    """[R-7.3.4]"""
    before = begun(SHARED)
    for held in (Held(before), None):
        at_client, _ = resumed(side(token=b"wrong"), Resumption(before, 0, 1), held, SHARED)
        assert str(at_client) == "the server refused: authentication failed"


def test_a_session_that_is_not_held_is_not_found() -> None:
    """[R-7.3.4]"""
    at_client, at_server = resumed(PRIVATE, Resumption(begun(PRIVATE), 0, 1), None)
    assert isinstance(at_client, HandshakeError)
    assert at_client.refused
    assert "no such session" in str(at_server)


def test_a_handshake_that_was_recorded_cannot_be_played_again() -> None:
    """[R-7.3.3]"""
    before = begun(SHARED)
    held = Held(before)
    client = ClientHandshake(SHARED, resume=Resumption(before, 0, 1))
    server = ServerHandshake(SHARED, session="s-2", lookup=lambda _: held)
    hello = b"".join(client.data_to_send())
    feed(server, hello)
    feed(client, b"".join(server.data_to_send()))
    proof = b"".join(client.data_to_send())
    feed(server, proof)
    assert isinstance(server.outcome, Established)
    again = ServerHandshake(side(token=TOKEN, nonce=bytes(32)), session="s-3", lookup=lambda _: held)
    feed(again, hello)
    feed(again, proof)
    assert isinstance(again.outcome, AuthenticationError)
    assert len(held.taken) == 1


@pytest.mark.parametrize("change", [{"codec": "json"}, {"version": 2}, {"limits": Limits(frame=70_000)}])
def test_a_session_is_not_resumed_on_other_terms(change: dict[str, Any]) -> None:
    """[R-7.3.5] [R-7.3.6]"""
    before = begun(PRIVATE)
    held = Held(before)
    for name, value in change.items():
        setattr(held, name, value)
    at_client, _ = resumed(PRIVATE, Resumption(before, 0, 1), held)
    assert "other terms" in str(at_client)
    assert held.taken == []
    other = Established(
        **{name: change.get(name, getattr(before, name)) for name in Established.__struct_fields__}  # type: ignore[arg-type]
    )
    at_client, _ = resumed(PRIVATE, Resumption(other, 0, 1), Held(before))
    assert "another session than it was asked for" in str(at_client)


def test_a_server_that_does_not_know_the_session_is_found_out() -> None:
    """[R-7.3.6]"""
    before = begun(PRIVATE)

    class Forged(ServerHandshake):
        def _is_proof(self, mac: bytes, role: bytes, key: bytes | None = None) -> bool:
            return True

    wrong = Held(Established(1, "msgpack", Limits(), [], "", "", b"another secret"))
    client = ClientHandshake(PRIVATE, resume=Resumption(before, 0, 1))
    shake(client, Forged(PRIVATE, session="s", lookup=lambda _: wrong))
    assert str(client.outcome) == "the server does not know the session"


def test_a_count_that_cannot_be_is_refused_before_anything_is_taken_over() -> None:
    """[R-7.3.9]"""
    before = begun(PRIVATE)
    at_client, at_server = resumed(PRIVATE, Resumption(before, 10, 1), Held(before))
    assert "impossible" in str(at_client)
    assert isinstance(at_server, HandshakeError)
    one, two = pair()
    one.call("m", None)
    pump(one, two)
    for received in (-1, 2):
        with pytest.raises(RemoteProtocolError):
            one.check_resume_untrusted(received)
        with pytest.raises(RemoteProtocolError):
            one.resume(received, ReceiveBuffer(1000))


def test_what_the_other_lacks_is_sent_again_before_anything_new() -> None:
    """[R-7.3.10] [R-7.3.11]"""
    one, two = pair()
    first = one.call("first", None)
    pump(one, two)
    second = one.call("second", None)
    lost = b"".join(one.data_to_send(1 << 20))
    assert receive(two, lost[:-1]) == []  # half a frame
    two.reply(first, 1)
    two.data_to_send(1 << 20)  # lost as well
    third = one.call("third", None)
    one.ping(7)
    counts = one.frames_received, two.frames_received
    assert counts == (0, 1)
    one.resume(counts[1], ReceiveBuffer(1000))
    two.resume(counts[0], ReceiveBuffer(1000))
    frames = sent(one)
    assert [getattr(frame, "id", None) for frame in frames] == [second, third]
    at_two = receive(two, encoded(*frames))
    assert [event.method for event in at_two if isinstance(event, Call)] == ["second", "third"]
    at_one, _ = pump(one, two)
    assert [event.id for event in at_one if isinstance(event, Reply)] == [first]


def test_a_resumption_that_is_cut_itself_begins_again() -> None:
    """[R-7.3.10]"""
    one, two = pair()
    ids = [one.call("m", bytes(10_000)) for _ in range(5)]
    one.data_to_send(1 << 20)
    for size in (1, 15_000, 1):
        one.resume(two.frames_received, ReceiveBuffer(1000))
        receive(two, b"".join(one.data_to_send(size)))
        two.resume(one.frames_received, ReceiveBuffer(1 << 18))
    one.resume(two.frames_received, ReceiveBuffer(1000))
    receive(two, b"".join(one.data_to_send(1 << 20)))
    assert two.frames_received == len(ids)
    assert sorted(two._calls) == ids


def test_parts_go_on_where_they_were() -> None:
    """[R-7.3.10]"""
    one, two = pair()
    one.call("m", bytes(300_000))
    receive(two, b"".join(one.data_to_send(1)))
    one.data_to_send(1)
    one.resume(two.frames_received, ReceiveBuffer(1000))
    frames = sent(one)
    assert [type(frame) for frame in frames] == [Part] * 4
    pump(one, two)
    (call,) = receive(two, encoded(*frames))
    assert isinstance(call, Call)
    assert len(call.params) > 300_000


def test_acknowledging_starts_anew_where_the_handshake_ended() -> None:
    one, two = pair()
    for _ in range(1000):
        one.call("m", None)
    pump(one, two)
    one.resume(1000, ReceiveBuffer(1000))
    two.resume(0, ReceiveBuffer(1 << 18))
    for _ in range(1023):
        one.call("m", None)
    receive(two, b"".join(one.data_to_send(1 << 20)))
    assert sent(two) == []
    one.call("m", None)
    receive(two, b"".join(one.data_to_send(1 << 20)))
    assert sent(two) == [Ack(2024)]
