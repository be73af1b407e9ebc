"""Streams and listeners over connected stream sockets: what TCP and Unix sockets have in common."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final

import trio

from rlm_wire.errors import TransportError
from rlm_wire.transports.base import ByteStream, Listener
from rlm_wire.transports.descriptors import DescriptorStream, above_standard

logger = logging.getLogger(__name__)

LINGER: Final = 2.0
"""Seconds to wait on closing for the peer to close too. Closing a socket that holds unread bytes resets the connection
and discards what the peer has not received yet, such as a last large reply."""

LINGER_BYTES: Final = 16 * 1024 * 1024
"""Bytes to discard meanwhile: more than the kernels hold between two peers. A peer that goes on is not listening."""

BACKLOG: Final = 4096
"""The kernel lowers this to its own limit. A full queue refuses Unix clients at once and TCP clients after seconds."""

RESOURCE_PAUSE: Final = 0.1
"""Seconds before accepting again when descriptors or memory ran out; no event tells when there are some again."""

_OUT_OF_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_LISTENER_BROKEN: Final = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP, errno.EFAULT}


def claim_socket(sock: socket.socket) -> socket.socket:
    """Take over `sock`; return it non-blocking, with a descriptor that is not one of the standard streams'."""
    family, kind, protocol = sock.family, sock.type, sock.proto
    claimed = socket.socket(family, kind, protocol, fileno=above_standard(sock.detach()))
    claimed.setblocking(False)
    return claimed


class SocketStream(DescriptorStream):
    """Owns the connected, non-blocking socket `sock`."""

    def __init__(self, sock: socket.socket, description: str, *, private: bool = False) -> None:
        super().__init__(sock.fileno(), sock.fileno(), description, private=private)
        self._socket = sock

    def close(self) -> None:
        super().close()
        self._socket.detach()

    async def aclose(self) -> None:
        if self.closed:
            await trio.lowlevel.checkpoint()
            return
        self.closed = True  # from here on only this task uses the socket
        trio.lowlevel.notify_closing(self._socket)
        try:
            with trio.move_on_after(LINGER):
                await self._end_politely()
        finally:
            self.close()

    async def _end_politely(self) -> None:
        """Say that no more will be sent, then discard what still arrives until the peer has closed too."""
        discarded = bytearray(65536)
        try:
            self._socket.shutdown(socket.SHUT_WR)
            size = 0
            while size < LINGER_BYTES:
                await trio.lowlevel.wait_readable(self._socket)
                more = self._socket.recv_into(discarded)
                if not more:
                    return
                size += more
        except OSError:
            return  # the peer is gone, so there is nobody left to wait for


class SocketListener(Listener):
    """Accepts from several listening sockets at once. Whoever made the sockets closes them."""

    def __init__(
        self, sockets: Sequence[socket.socket], urls: list[str], wrap: Callable[[socket.socket], ByteStream]
    ) -> None:
        self._sockets = sockets
        self._wrap = wrap
        self.urls = urls

    async def accept(self) -> ByteStream:
        await trio.lowlevel.checkpoint()
        while True:
            for sock in self._sockets:
                connection = await self._accept_from(sock)
                if connection is not None:
                    return self._wrap(claim_socket(connection))
            await self._any_readable()

    async def _accept_from(self, sock: socket.socket) -> socket.socket | None:
        """The next connection waiting at `sock`, if there is one."""
        if sock.fileno() < 0:
            raise trio.ClosedResourceError(f"the listener at {self.urls} is closed")
        try:
            return sock.accept()[0]
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in _LISTENER_BROKEN:
                raise TransportError(f"cannot accept at {self.urls}: {error.strerror}") from error
            if error.errno in _OUT_OF_RESOURCES:
                logger.warning("cannot accept at %s: %s; trying again", self.urls, error.strerror)
                await trio.sleep(RESOURCE_PAUSE)
            return None  # else the client went away between connecting and being accepted

    async def _any_readable(self) -> None:
        if len(self._sockets) == 1:
            await trio.lowlevel.wait_readable(self._sockets[0])
            return

        async def watch(sock: socket.socket, scope: trio.CancelScope) -> None:
            await trio.lowlevel.wait_readable(sock)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            for sock in self._sockets:
                nursery.start_soon(watch, sock, nursery.cancel_scope)
