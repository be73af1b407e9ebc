"""The handshake, both roles: what is agreed, how the token is proven, and what each side refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from frames.joined import bodies, framed

from rlm_wire.errors import AuthenticationError, HandshakeError
from rlm_wire.frames.handshake import ClientHandshake, Established, Handshake, ServerHandshake, Side
from rlm_wire.frames.limits import HANDSHAKE_FRAME_LIMIT, PREFACE, Limits

TOKEN = b"correct horse battery staple"


def side(**options: Any) -> Side:
    return Side(**{"software": "test/1", "nonce": bytes(range(32)), **options})


def feed(handshake: Handshake, data: bytes, chunk: int = 1 << 20) -> None:
    rest = data
    while rest:
        space = handshake.buffer.writable()
        count = min(len(space), len(rest), chunk)
        space[:count] = rest[:count]
        rest = rest[count:]
        handshake.received(count)
        if handshake.outcome is not None:  # what follows belongs to the session
            space = handshake.buffer.writable()
            assert len(rest) <= len(space)
            space[: len(rest)] = rest
            handshake.buffer.wrote(len(rest))
            return


def shake(client: ClientHandshake, server: ServerHandshake, chunk: int = 1 << 20) -> None:
    while True:
        there, back = b"".join(client.data_to_send()), b"".join(server.data_to_send())
        if not there and not back:
            return
        if server.outcome is None:
            feed(server, there, chunk)
        if client.outcome is None:
            feed(client, back, chunk)


def frames(handshake: Handshake) -> list[Any]:
    """What it sends, as JSON values; the preface is checked and taken off."""
    data = b"".join(handshake.data_to_send())
    return [json.loads(body) for body in bodies(data.removeprefix(PREFACE))]


def met(client_side: Side, server_side: Side, chunk: int = 1 << 20) -> tuple[Any, Any]:
    client, server = ClientHandshake(client_side), ServerHandshake(server_side, session="s-1")
    shake(client, server, chunk)
    return client.outcome, server.outcome


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_private_streams_need_no_token(chunk: int) -> None:
    """[R-3.4.1]"""
    at_client, at_server = met(
        side(private=True, software="c"), side(private=True, software="s", features=["f"]), chunk
    )
    assert isinstance(at_client, Established)
    assert (at_client.session, at_client.software, at_client.features, at_client.codec) == (
        "s-1",
        "s",
        ["f"],
        "msgpack",
    )
    assert (at_server.session, at_server.software, at_server.version) == ("s-1", "c", 1)


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
@pytest.mark.parametrize("binding", [b"", b"digest of a certificate"])
def test_both_sides_prove_the_token(binding: bytes, chunk: int) -> None:
    """[R-3.3.1] [R-3.3.4] [R-3.3.5]"""
    same = side(token=TOKEN, channel_binding=binding)
    at_client, at_server = met(same, same, chunk)
    assert isinstance(at_client, Established)
    assert isinstance(at_server, Established)


def test_the_preface_and_hello_are_sent_before_anything_is_heard() -> None:
    """[R-2.1.1] [R-3.1.3]"""
    client, server = ClientHandshake(side()), ServerHandshake(side(), session="s")
    first = b"".join(client.data_to_send())
    assert first[:8] == bytes.fromhex("89524c4d570d0a1a")
    assert json.loads(bodies(first[8:])[0])[0] == 1
    assert b"".join(server.data_to_send()) == PREFACE


def test_the_macs_are_what_the_specification_says() -> None:
    """[R-3.3.3] [R-3.3.7]"""
    binding = hashlib.sha256(b"a certificate").digest()
    client = ClientHandshake(side(token=TOKEN, channel_binding=binding))
    server = ServerHandshake(side(token=TOKEN, channel_binding=binding, nonce=bytes(32)), session="s")
    hello = b"".join(client.data_to_send())
    feed(server, hello)
    challenge = b"".join(server.data_to_send())
    feed(client, challenge)
    proof = b"".join(client.data_to_send())
    feed(server, proof)

    def mac(role: bytes) -> str:
        message = b"rlm-wire/1 " + role
        for part in (bodies(hello[8:])[0], bodies(challenge[8:])[0], binding):
            message += len(part).to_bytes(4, "big") + part
        return base64.b64encode(hmac.digest(TOKEN, message, "sha256")).decode()

    assert json.loads(bodies(proof)[0]) == [3, mac(b"client"), ""]
    assert frames(server)[0][3] == mac(b"server")


def test_a_wrong_token_gets_one_generic_answer() -> None:
    """[R-3.3.4]"""
    at_client, at_server = met(side(token=b"wrong"), side(token=TOKEN))
    assert isinstance(at_client, AuthenticationError)
    assert isinstance(at_server, AuthenticationError)
    assert str(at_client) == "the server refused: authentication failed"


def test_a_relayed_handshake_with_another_certificate_fails() -> None:
    """[R-3.3.7]"""
    at_client, at_server = met(side(token=TOKEN, channel_binding=b"one"), side(token=TOKEN, channel_binding=b"two"))
    assert isinstance(at_client, AuthenticationError)
    assert isinstance(at_server, AuthenticationError)


def test_a_server_that_does_not_know_the_token_is_found_out() -> None:
    """[R-3.3.5]"""
    client = ClientHandshake(side(token=TOKEN))
    server = ServerHandshake(side(token=b"another"), session="s")
    client.data_to_send()
    feed(server, PREFACE + framed(json.dumps(hello()).encode()))
    feed(client, b"".join(server.data_to_send()))
    assert client.outcome is None
    feed(client, framed(json.dumps([4, "s", 0, base64.b64encode(bytes(32)).decode()]).encode()))
    assert isinstance(client.outcome, AuthenticationError)
    assert "does not know the token" in str(client.outcome)


@pytest.mark.parametrize("token", [None, b""])
def test_without_a_token_strangers_are_refused_by_either_side(token: bytes | None) -> None:
    """[R-3.3.2] [R-3.3.8]"""
    for ours, theirs in ((token, TOKEN), (TOKEN, token), (token, token)):
        at_client, at_server = met(side(token=ours), side(token=theirs))
        assert isinstance(at_client, AuthenticationError)
        assert isinstance(at_server, HandshakeError)


def test_a_client_takes_no_welcome_without_proof_from_a_stream_that_is_not_private() -> None:
    """[R-3.3.6]"""
    at_client, _ = met(side(token=TOKEN), side(private=True))
    assert isinstance(at_client, AuthenticationError)
    assert "not private" in str(at_client)


def hello(**changes: Any) -> list[Any]:
    fields = {
        "versions": [1],
        "codecs": ["msgpack", "json"],
        "features": [],
        "limits": {},
        "nonce": base64.b64encode(bytes(16)).decode(),
        "software": "x",
        **changes,
    }
    return [1, *fields.values()]


def answer_to(first: list[Any], **options: Any) -> tuple[Any, list[Any]]:
    server = ServerHandshake(side(**{"private": True, **options}), session="s")
    feed(server, PREFACE + framed(json.dumps(first).encode()))
    return server.outcome, frames(server)[-1]


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        (["msgpack", "json"], ["json", "msgpack"], "json"),
        (["json"], ["msgpack", "json"], "json"),
        (["msgpack", "json"], ["cbor", "msgpack"], "msgpack"),
    ],
)
def test_the_first_codec_of_the_client_that_the_server_knows_is_taken(
    ours: list[str], theirs: list[str], agreed: str
) -> None:
    """[R-3.2.2]"""
    outcome, welcome = answer_to(hello(codecs=theirs, versions=[0, 1, 2, 99]), codecs=ours)
    assert outcome.codec == agreed
    assert welcome[4][:2] == [1, agreed]


@pytest.mark.parametrize("change", [{"versions": []}, {"versions": [2]}, {"codecs": []}, {"codecs": ["cbor"]}])
def test_no_common_version_or_codec_is_unimplemented(change: dict[str, Any]) -> None:
    """[R-3.2.3]"""
    outcome, goodbye = answer_to(hello(**change))
    assert isinstance(outcome, HandshakeError)
    assert goodbye[:2] == [5, "unimplemented"]
    assert "this side speaks" in goodbye[2]


@pytest.mark.parametrize("size", [0, 15, 65])
def test_a_nonce_that_is_too_short_or_too_long_is_refused(size: int) -> None:
    """[R-3.2.1]"""
    outcome, goodbye = answer_to(hello(nonce=base64.b64encode(bytes(size)).decode()))
    assert isinstance(outcome, HandshakeError)
    assert goodbye[:2] == [5, "invalid_argument"]


@pytest.mark.parametrize("size", [16, 64])
def test_the_shortest_and_the_longest_nonce_are_taken(size: int) -> None:
    """[R-3.2.1]"""
    assert isinstance(answer_to(hello(nonce=base64.b64encode(bytes(size)).decode()))[0], Established)


BAD_LIMITS = [
    {"frame": 66_559},
    {"frame": -1},
    {"message": 1_000},
    {"replay": 1_000_000},
    {"reassembly": 0},
    {"calls": 0},
    {"item_window": 0},
]


@pytest.mark.parametrize("limits", BAD_LIMITS)
def test_limits_that_cannot_be_worked_with_are_refused_by_either_side(limits: dict[str, int]) -> None:
    """[R-8.2.1]"""
    outcome, goodbye = answer_to(hello(limits=limits))
    assert isinstance(outcome, HandshakeError)
    assert goodbye[:2] == [5, "failed_precondition"]
    at_client, _ = met(side(private=True), side(private=True, limits=Limits(**limits)))
    assert isinstance(at_client, HandshakeError)


def test_unknown_limits_and_fields_are_ignored() -> None:
    """[R-4.1.4] [R-4.1.5]"""
    outcome, _ = answer_to([*hello(limits={"frame": 70_000, "newer": 1}), None, "newer"])
    assert outcome.limits == Limits(frame=70_000)


@pytest.mark.parametrize(
    "agreement",
    [[2, "json", [], {}, "s"], [1, "cbor", [], {}, "s"], [1, "msgpack", [], {}, "s"], None],
)
def test_a_client_refuses_what_it_did_not_offer(agreement: Any) -> None:
    """[R-3.2.4] [R-3.4.2]"""
    client = ClientHandshake(side(private=True, codecs=["json"]))
    feed(client, PREFACE + framed(json.dumps([4, "s", 0, "", agreement]).encode()))
    assert isinstance(client.outcome, HandshakeError)
    assert len(str(client.outcome)) < 200


@pytest.mark.parametrize(
    "first", [[3, base64.b64encode(bytes(32)).decode()], [4, "s"], [2, [1, "json", [], {}, ""], "AAAA"]]
)
def test_a_server_expects_hello_first(first: list[Any]) -> None:
    """[R-3.1.2]"""
    outcome, goodbye = answer_to(first)
    assert isinstance(outcome, HandshakeError)
    assert goodbye[0] == 5


def test_two_hellos_are_refused() -> None:
    """[R-3.1.2]"""
    server = ServerHandshake(side(token=TOKEN), session="s")
    feed(server, PREFACE + framed(json.dumps(hello()).encode()) * 2)
    assert isinstance(server.outcome, HandshakeError)
    assert "Hello is not allowed when expecting proof" in str(server.outcome)


def test_the_frame_limit_before_authentication_is_64_kib() -> None:
    """[R-2.3.3]"""
    server = ServerHandshake(side(token=TOKEN), session="s")
    feed(server, PREFACE + (HANDSHAKE_FRAME_LIMIT + 1).to_bytes(4, "big"))
    assert isinstance(server.outcome, HandshakeError)
    padded = json.dumps(hello(software="x" * 60_000)).encode().ljust(HANDSHAKE_FRAME_LIMIT)
    server = ServerHandshake(side(token=TOKEN), session="s")
    feed(server, PREFACE + framed(padded))
    assert server.outcome is None


def test_what_follows_hello_on_a_private_stream_stays_for_the_session() -> None:
    """[R-3.6.1]"""
    server = ServerHandshake(side(private=True), session="s")
    feed(server, PREFACE + framed(json.dumps(hello()).encode()) + b"the rest")
    assert isinstance(server.outcome, Established)
    assert server.buffer.peek() == b"the rest"


def test_a_goodbye_ends_the_handshake_on_either_side() -> None:
    """[R-4.4.2]"""
    server = ServerHandshake(side(private=True), session="s")
    feed(server, PREFACE + framed(b'[5,"unavailable","not now"]'))
    assert str(server.outcome) == "the client left: not now"
    client = ClientHandshake(side(private=True))
    feed(client, PREFACE + framed(b'[5,"unavailable",""]'))
    assert str(client.outcome) == "the server refused: unavailable"


def test_the_end_of_the_stream_is_told_with_what_was_seen() -> None:
    client = ClientHandshake(side(), skip_banner=True)
    assert "before it sent anything" in str(client.end_of_stream())
    feed(client, b"bash: rlm-worker: command not found\n")
    assert "command not found" in str(client.end_of_stream())


def test_a_side_shows_no_token() -> None:
    assert TOKEN.decode() not in repr(side(token=TOKEN))
