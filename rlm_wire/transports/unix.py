"""`unix:PATH`: Unix stream sockets in the file system, private when both ends belong to the same user."""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
import stat
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import trio

from rlm_wire.errors import TransportError
from rlm_wire.transports.base import ByteStream, Listener, refuse_ssl_context
from rlm_wire.transports.sockets import BACKLOG, SocketListener, SocketStream, claim_socket

OWNER_ONLY: Final = 0o600


class UnixTransport:
    """A listener's socket file has mode 0600, replaces a file whose listener is dead, and is removed at the end."""

    reconnects = True

    @asynccontextmanager
    async def connect(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[ByteStream]:
        refuse_ssl_context("unix", ssl_context)
        sock = _new_socket()
        try:
            sock.connect(address)  # never blocks: either the queue takes it, or it fails at once
        except BlockingIOError as error:
            sock.close()
            raise TransportError(f"unix:{address}: too many clients are waiting there; try again") from error
        except (OSError, ValueError) as error:
            sock.close()
            raise TransportError(f"cannot connect to unix:{address}: {_reason(error)}") from error
        stream = _stream(sock, address)
        try:
            await trio.lowlevel.checkpoint()
            yield stream
        finally:
            await stream.aclose()

    @asynccontextmanager
    async def listen(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
        refuse_ssl_context("unix", ssl_context)
        with _new_socket() as sock:
            try:
                with _sole_starter_in(Path(address).parent):
                    _remove_stale(address)
                    os.fchmod(sock.fileno(), OWNER_ONLY)  # the file gets the socket's mode; no window, no umask
                    sock.bind(address)
                    identity = _identity(address)
                    sock.listen(BACKLOG)
            except (OSError, ValueError) as error:
                raise TransportError(f"cannot listen on unix:{address}: {_reason(error)}") from error
            try:
                await trio.lowlevel.checkpoint()
                yield SocketListener([sock], [f"unix:{address}"], lambda accepted: _stream(accepted, address))
            finally:
                trio.lowlevel.notify_closing(sock)
                _remove_if_still(address, identity)


transport = UnixTransport()


def _new_socket() -> socket.socket:
    return claim_socket(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))


def _stream(sock: socket.socket, path: str) -> SocketStream:
    return SocketStream(sock, f"unix:{path}", private=_peer_is_our_user(sock))


def _peer_is_our_user(sock: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):
        return False
    layout = struct.Struct("iII")  # struct ucred: pid, uid, gid
    _, uid, _ = layout.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size))
    return bool(uid == os.geteuid())


@contextmanager
def _sole_starter_in(directory: Path) -> Iterator[None]:
    """Of two listeners that start together on one stale path, the second must not remove the first one's new file."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: str) -> None:
    """Remove a socket file nobody listens on. Raises `TransportError` for one in use and for any other file."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise TransportError(f"cannot listen on unix:{path}: a file that is not a socket is there")
    with _new_socket() as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except BlockingIOError:
            pass  # a live listener with a full queue
    raise TransportError(f"cannot listen on unix:{path}: another process is listening there")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _remove_if_still(path: str, identity: tuple[int, int] | None) -> None:
    """Remove our socket file, but not one that has taken its place."""
    if _identity(path) == identity:
        Path(path).unlink(missing_ok=True)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, BlockingIOError):
        return "another process is starting there; try again"
    return getattr(error, "strerror", None) or str(error)
