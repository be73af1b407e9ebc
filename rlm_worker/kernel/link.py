"""The session between worker and kernel, the same from both ends, over the kernel's private socketpair.

A kernel is known by its socket, and both ends run the same code, from one installation: there is nothing to agree on,
so the session starts without a handshake. Nor is there a keep-alive: a cell may hold its interpreter for as long as its
timeout allows, and that either process has died is seen in other ways.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.services import Service
from rlm_wire.broker.session import open_peer
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.limits import PROTOCOL_VERSION, Limits
from rlm_wire.transports.sockets import SocketStream

CODEC: Final = "msgpack"


@asynccontextmanager
async def open_link(sock: socket.socket, service: Service, *, worker: bool) -> AsyncIterator[Peer]:
    """The other end of `sock`, which is closed on leaving. `worker` says which end this is.

    Leaving ends the session with a Goodbye. Cancellation: as leaving.
    """
    sock.setblocking(False)
    stream = SocketStream(sock, "kernel", private=True)
    limits = Limits()
    connection = Connection(client=worker, codec=codec_named(CODEC), ours=limits, theirs=limits)
    info = PeerInfo("kernel", PROTOCOL_VERSION, CODEC, [], limits, session="")
    try:
        async with open_peer(connection, stream, service, info, keepalive=False) as peer:
            yield peer
    finally:
        stream.close()
