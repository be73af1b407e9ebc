"""What is particular to TCP."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack

import pytest
import trio
import trio.testing
from transports.streams import connected, receive, receive_all

from rlm_wire.errors import TransportError
from rlm_wire.transports import transport_for
from rlm_wire.transports.sockets import SocketStream
from rlm_wire.transports.tcp import CONNECT_TIMEOUT
from rlm_wire.transports.tls import TlsStream


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:65536", "::1:5", "[::1]", "[host]:1"])
async def test_an_address_that_is_not_host_and_port_is_refused(address: str) -> None:
    transport, _ = transport_for("tcp:")
    with pytest.raises(TransportError, match="HOST:PORT"):
        async with transport.connect(address):
            pass
    with pytest.raises(TransportError, match="HOST:PORT"):
        async with transport.listen(address):
            pass


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("host", "there is no port"),
        ("host:", "there is no port"),
        ("host:65536", "'65536' is no port"),
        ("host:99999", "'99999' is no port"),
        ("host:-1", "'-1' is no port"),
        ("host:abc", "'abc' is no port"),
        ("host:\u0661", "'\u0661' is no port"),
        ("host:" + "9" * 5000, f"'{'9' * 20}' is no port"),  # more digits than int() takes
        (":1", "there is no host"),
        ("::1:5", "an IPv6 address stands in brackets"),
        ("[host]:1", "brackets are for IPv6"),
    ],
)
async def test_a_wrong_address_is_one_line_that_says_what_to_write(address: str, problem: str) -> None:
    transport, _ = transport_for("tcp:")
    for lowest, opened in ((1, transport.connect(address)), (0, transport.listen(address))):
        with pytest.raises(TransportError) as caught:
            async with opened:
                pass
        form = f"the address must be HOST:PORT, or [HOST]:PORT for IPv6, with a port from {lowest} to 65535"
        assert str(caught.value) == f"tcp://{address}: {problem}: {form}"


async def test_port_0_is_for_listening_only() -> None:
    for scheme in ("tcp", "tls"):
        transport, address = transport_for(f"{scheme}://127.0.0.1:0")
        with pytest.raises(TransportError, match=rf"{scheme}://127.0.0.1:0: '0' is no port: .* from 1 to 65535"):
            async with transport.connect(address):
                pass


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
async def test_a_name_that_no_host_can_have_is_refused(host: str) -> None:
    transport, address = transport_for(f"tcp://{host}:1")
    with pytest.raises(TransportError, match="no host can have this name"):
        async with transport.connect(address):
            pass
    with pytest.raises(TransportError, match="no host can have this name"):
        async with transport.listen(address):
            pass


async def test_nobody_listening_is_an_error_that_names_the_address_and_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    transport, address = transport_for(f"tcp://127.0.0.1:{port}")
    with pytest.raises(TransportError, match=rf"tcp://127.0.0.1:{port}: Connection refused"):
        async with transport.connect(address):
            pass


async def test_a_taken_port_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        transport, address = transport_for(f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(TransportError, match=r"cannot listen on tcp://127\.0\.0\.1:\d+: Address already in use"):
            async with transport.listen(address):
                pass


async def test_a_host_with_several_addresses_is_listened_on_at_each() -> None:
    transport, address = transport_for("tcp://localhost:0")
    async with transport.listen(address) as listener:
        for url in listener.urls:
            transport, address = transport_for(url)
            async with transport.connect(address) as one:
                other = await listener.accept()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(one.send, [url.encode()])
                    assert await receive(other, len(url)) == url.encode()
                    nursery.start_soon(one.aclose)
                    await other.aclose()


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
async def test_b62_both_ends_send_small_pieces_at_once_and_give_up_on_a_silent_network(scheme: str) -> None:
    async with connected(f"{scheme}://127.0.0.1:0") as ends:
        for stream in ends:
            end = stream._below if isinstance(stream, TlsStream) else stream
            assert isinstance(end, SocketStream)
            with socket.socket(fileno=socket.dup(end._receiving)) as sock:  # what the kernel knows is the point
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


async def test_b62_a_network_that_swallows_connections_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """A listener whose queue is full: the kernel drops what would be one more."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, ExitStack() as waiting:
        for _ in range(3):
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listening.getsockname())
        transport, address = transport_for(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        with trio.fail_after(CONNECT_TIMEOUT + 1):
            with pytest.raises(TransportError, match="no answer in 10 s"):
                async with transport.connect(address):
                    pass


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "unix:/nowhere", "memory:x", "stdio:true"])
async def test_a_transport_that_cannot_encrypt_refuses_a_context(url: str) -> None:
    transport, address = transport_for(url)
    context = ssl.create_default_context()
    for open_it in (transport.connect, transport.listen):
        with pytest.raises(TransportError, match="does not encrypt; use tls://"):
            async with open_it(address, ssl_context=context):
                pass


async def test_a_reset_is_a_transport_error() -> None:
    async with connected("tcp://127.0.0.1:0") as (one, other):
        assert isinstance(other, SocketStream)
        with socket.socket(fileno=socket.dup(other._receiving)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            other.close()
        with pytest.raises(TransportError, match="connection lost while receiving: Connection reset"):
            await receive_all(one)
