"""Every built-in transport, and one made by a stranger with the adapter, keep all promises of a byte stream."""

from __future__ import annotations

import shlex
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trustme

from rlm_wire.errors import TransportError
from rlm_wire.testing import check_transport
from rlm_wire.transports import ByteStream, Listener, transport_for
from rlm_wire.transports.adapter import TrioByteStream

RELAY = Path(__file__).with_name("stdio_relay.py")


def without_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return True
    return False


IPV6 = pytest.param("tcp://[::1]:0", marks=pytest.mark.skipif(without_ipv6(), reason="this machine has no IPv6"))


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", IPV6, "tls://127.0.0.1:0", "memory:contract"])
async def test_a_built_in_transport_keeps_every_promise(url: str) -> None:
    await check_transport(*transport_for(url))


async def test_unix_sockets_keep_every_promise(tmp_path: Path) -> None:
    await check_transport(*transport_for(f"unix:{tmp_path}/socket"))


async def test_tls_with_an_authority_and_client_certificates_keeps_every_promise() -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    client = ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.issue_cert("client@example.org").configure_cert(client)
    for context in (server, client):
        authority.configure_trust(context)
    server.verify_mode = ssl.CERT_REQUIRED
    await check_transport(*transport_for("tls://127.0.0.1:0"), client_context=client, server_context=server)


class StdioThroughARelay:
    """Both ends of `stdio:` in one process: the child claims its standard streams and relays them to a Unix socket."""

    def listen(
        self, address: str, *, ssl_context: ssl.SSLContext | None = None
    ) -> AbstractAsyncContextManager[Listener]:
        return transport_for("unix:")[0].listen(address, ssl_context=ssl_context)

    def connect(
        self, address: str, *, ssl_context: ssl.SSLContext | None = None
    ) -> AbstractAsyncContextManager[ByteStream]:
        command = shlex.join([sys.executable, str(RELAY), address])
        return transport_for("stdio:")[0].connect(command, ssl_context=ssl_context)


async def test_stdio_keeps_every_promise(tmp_path: Path) -> None:
    await check_transport(StdioThroughARelay(), f"{tmp_path}/socket")


class StrangersTransport:
    """What a third party writes: Trio's own TCP streams through the adapter."""

    @asynccontextmanager
    async def connect(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[ByteStream]:
        try:
            opened = await trio.open_tcp_stream("127.0.0.1", int(address))
        except OSError as error:
            raise TransportError(f"cannot connect to stranger:{address}") from error
        async with opened:
            yield TrioByteStream(opened, f"stranger:{address}")

    @asynccontextmanager
    async def listen(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
        (opened,) = await trio.open_tcp_listeners(int(address), host="127.0.0.1")
        async with opened:
            yield StrangersListener(opened)


class StrangersListener(Listener):
    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self.urls = [f"stranger:{listener.socket.getsockname()[1]}"]

    async def accept(self) -> ByteStream:
        return TrioByteStream(await self._listener.accept(), "stranger: a client")


async def test_a_third_party_transport_on_the_adapter_keeps_every_promise() -> None:
    await check_transport(StrangersTransport(), "0")


class GarblingStream(TrioByteStream):
    """Changes a byte of every longer piece."""

    async def receive_into(self, buffer: memoryview) -> int:
        size = await super().receive_into(buffer)
        if size > 100:
            buffer[50] ^= 1
        return size


class GarblingTransport(StrangersTransport):
    @asynccontextmanager
    async def connect(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[ByteStream]:
        opened = await trio.open_tcp_stream("127.0.0.1", int(address))
        async with opened:
            yield GarblingStream(opened, f"stranger:{address}")


async def test_a_transport_that_changes_bytes_is_found_out_and_the_broken_promise_named() -> None:
    with trio.fail_after(20), pytest.raises(BaseExceptionGroup) as caught:
        await check_transport(GarblingTransport(), "0")
    assert caught.group_contains(AssertionError, match="other bytes arrived")
    assert caught.value.__notes__ == ["check_transport: vectors of any shape arrive in order, server first"]
