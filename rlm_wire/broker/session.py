"""A session from its first frame to its Goodbye: the order in which its parts begin and end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.link import Link
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.services import Service
from rlm_wire.frames.connection import Connection


@asynccontextmanager
async def open_peer(
    connection: Connection, link: Link, service: Service, info: PeerInfo, *, keepalive: bool = True
) -> AsyncIterator[Peer]:
    """Run a session over `link` while the body runs. Leaving ends every handler, then says Goodbye.

    Without `keepalive` a silent peer is not taken for dead: for one whose death shows in other ways.
    The body is not cancelled when the session is lost: its calls fail. Whatever the body raises is raised as it is.
    """
    peer = Peer(connection, link, service, info)
    with one_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.run, keepalive)
            try:
                async with service.lifespan(peer) as peer.state:
                    peer.ready.set()
                    try:
                        yield peer
                    finally:
                        await peer.end_handlers()
            finally:
                await peer.say_goodbye()
                peer.stop()
