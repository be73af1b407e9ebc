"""Peers that are not what they should be, on real sockets: each gets a bounded, typed answer, and harms no other."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from contract import calculator
from contract.calculator import Add
from contract.conftest import TOKEN, Endpoint, open_endpoint

import rlm_wire
from rlm_wire.frames.codec import encode_handshake
from rlm_wire.frames.limits import PREFACE, Limits
from rlm_wire.frames.schema import Hello

HELLO = encode_handshake(Hello([1], ["msgpack"], [], Limits(), b"n" * 32, "a test"))


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.fixture
async def tcp(tmp_path: Path) -> AsyncIterator[Endpoint]:
    async with open_endpoint("tcp", tmp_path) as opened:
        yield opened


@pytest.fixture
async def unix(tmp_path: Path) -> AsyncIterator[Endpoint]:
    async with open_endpoint("unix", tmp_path) as opened:
        yield opened


async def raw(endpoint: Endpoint) -> trio.SocketStream:
    if endpoint.url.startswith("unix:"):
        return await trio.open_unix_socket(endpoint.url.removeprefix("unix:"))
    host, port = endpoint.url.removeprefix("tcp://").rsplit(":", 1)
    return await trio.open_tcp_stream(host, int(port))


async def read_all(stream: trio.SocketStream) -> bytes:
    received = b""
    try:
        async for chunk in stream:
            received += chunk
    except trio.BrokenResourceError:
        pass  # the server may reset a connection whose bytes it did not read
    return received


async def works(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        assert await peer.call(Add(1, 2)) == 3


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", b"SSH"),
        (b"\x00" * 100, b"not rlm-wire"),
        (b"\x89RLMW\n\x1a" + HELLO, b"terminal"),
        (PREFACE + b"\xff\xff\xff\xff", b"limit"),
        (PREFACE + b"\x00\x00\x00\x00", b"0 bytes"),
        (PREFACE + frame(b"[" * 60_000), b"nested"),
        (PREFACE + frame(b"{}"), b"refused"),
        (PREFACE + frame(b"\xdd\xff\xff\xff\xff"), b"refused"),
        (PREFACE + frame(HELLO) * 2, b"not allowed"),
        (PREFACE + frame(HELLO.replace(b"[1,[1]", b"[1,[7]")), b"version"),
        (PREFACE + frame(HELLO.replace(b"msgpack", b"morse")), b"codec"),
    ],
)
async def test_what_is_not_the_protocol_is_told_so(tcp: Endpoint, sent: bytes, said: bytes) -> None:
    async with await raw(tcp) as stream:
        await stream.send_all(sent)
        answer = await read_all(stream)
    assert answer.startswith(PREFACE)
    assert said in answer
    assert TOKEN.encode() not in answer
    await works(tcp)


async def test_a_wrong_token_gets_one_generic_answer(tcp: Endpoint) -> None:
    with pytest.raises(rlm_wire.AuthenticationError) as caught:
        async with rlm_wire.connect(tcp.url, token="wrong " + TOKEN):
            pass
    assert "authentication failed" in str(caught.value)
    assert TOKEN not in str(caught.value)
    await works(tcp)


async def test_no_token_is_told_what_to_pass(tcp: Endpoint) -> None:
    with pytest.raises(rlm_wire.AuthenticationError, match="token"):
        async with rlm_wire.connect(tcp.url):
            pass
    await works(tcp)


async def test_a_server_for_strangers_without_a_token_refuses_to_start() -> None:
    with pytest.raises(rlm_wire.AuthenticationError, match="token"):
        async with rlm_wire.serve("tcp://127.0.0.1:0", calculator.service):
            pass


@pytest.mark.parametrize("before", ["", "exec <&-; ", "head -c 8 >/dev/null; ", "echo a banner; "])
async def test_b63_a_launcher_that_fails_is_told_with_its_status_and_stderr(before: str) -> None:
    """Whether it ends before or after our first bytes, with or without having spoken."""
    with pytest.raises(rlm_wire.LaunchError) as caught:
        async with rlm_wire.connect(f"stdio:sh -c '{before}echo no such container >&2; exit 127'"):
            pass
    assert caught.value.exit_code == 127
    assert "no such container" in caught.value.stderr
    assert "no such container" in str(caught.value)


async def test_a_server_that_does_not_know_the_token_is_found_out() -> None:
    async with rlm_wire.serve("tcp://127.0.0.1:0", calculator.service, "another token") as server:
        with pytest.raises(rlm_wire.AuthenticationError):
            async with rlm_wire.connect(server.urls[0], token=TOKEN):
                pass


async def test_tls_to_a_plain_port_and_the_reverse_are_named(tcp: Endpoint, tmp_path: Path) -> None:
    with pytest.raises(rlm_wire.WireError, match=r"(?i)plain|tls"):
        async with rlm_wire.connect(tcp.url.replace("tcp:", "tls:"), token=TOKEN):
            pass
    async with open_endpoint("tls", tmp_path) as tls:
        with pytest.raises(rlm_wire.WireError, match=r"(?i)tls"):
            async with rlm_wire.connect(tls.url.replace("tls:", "tcp:"), token=TOKEN):
                pass
        await works(tls)


async def test_a_man_in_the_middle_of_tls_is_exposed(tmp_path: Path) -> None:
    """He ends TLS with a certificate of his own and passes on what both say: their proofs are bound to the stream."""
    import trustme

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    onward = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    onward.check_hostname, onward.verify_mode = False, ssl.CERT_NONE

    async def pass_on(source: trio.SSLStream[trio.SocketStream], sink: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            async for chunk in source:
                await sink.send_all(chunk)
        except trio.BrokenResourceError:
            pass  # one end has had enough

    async with open_endpoint("tls", tmp_path) as tls, trio.open_nursery() as nursery:
        host, port = tls.url.removeprefix("tls://").rsplit(":", 1)

        async def relay(client: trio.SSLStream[trio.SocketStream]) -> None:
            server = await trio.open_ssl_over_tcp_stream(host, int(port), https_compatible=True, ssl_context=onward)
            async with client, server, trio.open_nursery() as both:
                both.start_soon(pass_on, client, server)
                both.start_soon(pass_on, server, client)

        listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1", https_compatible=True)
        nursery.start_soon(trio.serve_listeners, relay, listeners)
        middle = f"tls://127.0.0.1:{listeners[0].transport_listener.socket.getsockname()[1]}"
        with pytest.raises(rlm_wire.AuthenticationError):
            async with rlm_wire.connect(middle, token=TOKEN):
                pass
        nursery.cancel_scope.cancel()


async def test_b53_silent_strangers_do_not_keep_a_good_client_waiting(tcp: Endpoint) -> None:
    silent = [await raw(tcp) for _ in range(100)]
    await works(tcp)
    async with silent[0]:
        await read_all(silent[0])  # dropped, being the oldest of more than 64
    for stream in silent:
        await stream.aclose()
    await works(tcp)


async def test_b54_a_server_that_stays_silent_ends_in_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    with pytest.raises(rlm_wire.HandshakeError, match="nothing was received"):
        async with rlm_wire.connect(url, token=TOKEN):
            pass
    for listener in listeners:
        await listener.aclose()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (frame(HELLO), b"refused"),
        (b"\xff\xff\xff\xff", b"limit"),
        (frame(b"\x91" * 100_000), b"nested"),
        (frame(b"\x93\x13\x01\xc0"), b"never made"),
        (frame(b"\x94\x10\x02\xa1x\xc0"), b"parity"),
        (frame(b"\x93\x16\x00\x00"), b"refused"),
        (frame(b"\x92\x08\xcd\x01\x00"), b"Ack"),
        (frame(b"\x94\x17\x01\xc2\xc4\x00"), b"empty"),
        (frame(b"\x92\x63\x01"), b"refused"),
        (frame(b"\xc1"), b"refused"),
    ],
)
async def test_a_peer_that_breaks_the_rules_is_told_and_dropped(unix: Endpoint, sent: bytes, said: bytes) -> None:
    async with unix.connect() as other:
        async with await raw(unix) as stream:
            await stream.send_all(PREFACE + frame(HELLO) + sent)
            answer = await read_all(stream)
        assert said in answer
        assert await other.call(Add(1, 2)) == 3


async def test_calls_may_follow_hello_on_a_private_stream(unix: Endpoint) -> None:
    async with await raw(unix) as stream:
        call = b"\x94\x10\x01\xa8calc.add\x82\xa1x\x01\xa1y\x02"
        await stream.send_all(PREFACE + frame(HELLO) + frame(call))
        received = b""
        while frame(b"\x93\x13\x01\x03") not in received:
            chunk = await stream.receive_some()
            assert chunk, received
            received += chunk


async def test_a_peer_that_sends_and_never_reads_is_dropped(unix: Endpoint) -> None:
    async with await raw(unix) as stream:
        await stream.send_all(PREFACE + frame(HELLO))
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(frame(b"\x92\x06\x01") * 5_000_000)
    await works(unix)
