"""`tcp://HOST:PORT`: TCP, IPv4 and IPv6. Port 0 listens on a free one."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final

import trio

from rlm_wire.errors import TransportError
from rlm_wire.transports.base import ByteStream, Listener, refuse_ssl_context
from rlm_wire.transports.sockets import BACKLOG, SocketListener, SocketStream, claim_socket

UNACKNOWLEDGED_TIMEOUT: Final = 30_000
"""Milliseconds until the kernel gives up on a peer that acknowledges nothing (`TCP_USER_TIMEOUT`): as long as the wire
waits for a pong. The kernel's own default is about a quarter of an hour."""

UNSENT_LIMIT: Final = 64 * 1024
"""Bytes that the kernel takes ahead of what the network carries (`TCP_NOTSENT_LOWAT`). Its own limit grows to megabytes
beside a stream, and on a slow link they are seconds for which every small frame waits."""

CONNECT_TIMEOUT: Final = 10.0
"""Seconds for finding out a host's address and for its answer. Where packets vanish, the kernel would try for two
minutes, with pauses that grow; a new attempt finds a network that is back sooner."""


def split_address(address: str, *, scheme: str, listening: bool = False) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPV6]:PORT`. Port 0 is for listening only. Raises `TransportError`."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    lowest = 0 if listening else 1
    if not colon or not port:
        problem = "there is no port"
    elif not (port.isascii() and port.isdigit() and len(port) <= len("65535") and lowest <= int(port) <= 65535):
        problem = f"{port[:20]!r} is no port"
    elif not host:
        problem = "there is no host"
    elif bracketed != (":" in host):
        problem = "brackets are for IPv6" if bracketed else "an IPv6 address stands in brackets"
    else:
        return host, int(port)
    form = f"HOST:PORT, or [HOST]:PORT for IPv6, with a port from {lowest} to 65535"
    raise TransportError(f"{scheme}://{address}: {problem}: the address must be {form}")


def join_address(host: str, port: int, *, scheme: str) -> str:
    """The URL of a host and a port."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def open_tcp(address: str, *, scheme: str) -> SocketStream:
    """Connect to whichever of the host's addresses answers first. Raises `TransportError`."""
    host, port = split_address(address, scheme=scheme)
    try:
        with trio.fail_after(CONNECT_TIMEOUT):
            opened = await trio.open_tcp_stream(host, port)
    except trio.TooSlowError:
        raise TransportError(f"cannot connect to {scheme}://{address}: no answer in {CONNECT_TIMEOUT:.0f} s") from None
    except OSError as error:
        raise TransportError(f"cannot connect to {scheme}://{address}: {_reason(error)}") from error
    except UnicodeError:  # of the encoding for names of hosts
        raise TransportError(f"cannot connect to {scheme}://{address}: no host can have this name") from None
    sock = claim_socket(socket.socket(fileno=opened.socket.detach()))
    return _tuned(sock, f"{scheme}://{address}")


@asynccontextmanager
async def listen_tcp(address: str, *, scheme: str) -> AsyncIterator[SocketListener]:
    """Listen on all addresses of the host. Raises `TransportError`."""
    host, port = split_address(address, scheme=scheme, listening=True)
    try:
        opened = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        raise TransportError(f"cannot listen on {scheme}://{address}: {_reason(error)}") from error
    except UnicodeError:
        raise TransportError(f"cannot listen on {scheme}://{address}: no host can have this name") from None
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(claim_socket(socket.socket(fileno=listener.socket.detach()))) for listener in opened
        ]
        urls = [join_address(*sock.getsockname()[:2], scheme=scheme) for sock in sockets]
        try:
            yield SocketListener(sockets, urls, lambda sock: _tuned(sock, _peer_url(sock, scheme)))
        finally:
            for sock in sockets:
                trio.lowlevel.notify_closing(sock)


def _peer_url(sock: socket.socket, scheme: str) -> str:
    try:
        return join_address(*sock.getpeername()[:2], scheme=scheme)
    except OSError:
        return f"{scheme}: (a peer that has left)"


def _tuned(sock: socket.socket, description: str) -> SocketStream:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_TIMEOUT)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_LIMIT)
    return SocketStream(sock, description)


def _reason(error: OSError) -> str:
    """Trio sums up several attempts in one error without a number; what went wrong is in its causes."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_reason(each) for each in cause.exceptions if isinstance(each, OSError)))
    if isinstance(cause, OSError):
        return _reason(cause)
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # Trio puts the address into the error's own text
    return error.strerror or str(error)


class TcpTransport:
    """TCP without encryption: for loopback, tunnels and networks of one's own."""

    reconnects = True

    @asynccontextmanager
    async def connect(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[ByteStream]:
        refuse_ssl_context("tcp", ssl_context)
        stream = await open_tcp(address, scheme="tcp")
        try:
            yield stream
        finally:
            await stream.aclose()

    @asynccontextmanager
    async def listen(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
        refuse_ssl_context("tcp", ssl_context)
        async with listen_tcp(address, scheme="tcp") as listener:
            yield listener


transport = TcpTransport()
