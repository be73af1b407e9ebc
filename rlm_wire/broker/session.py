"""A session from its first frame to its Goodbye: the order in which its parts begin and end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.link import Link
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.services import Service
from rlm_wire.frames.connection import Connection


@asynccontextmanager
async def open_session(peer: Peer) -> AsyncIterator[None]:
    """Answer calls while the body runs; `peer.run_link` must be running too.

    Leaving ends every handler, then says Goodbye. The body is not cancelled when the session is lost: its calls fail.
    Whatever the body raises is raised as it is.
    """
    with one_error():
        async with trio.open_nursery() as nursery:
            with trio.CancelScope(shield=True):  # they are: a start that is cancelled would wait for them, for ever
                await nursery.start(peer.handlers.run)
            try:
                async with peer.service.lifespan(peer) as peer.lifespan_state:
                    peer.ready.set()
                    try:
                        yield
                    finally:
                        await peer.handlers.end()
            finally:
                await peer.say_goodbye()


@asynccontextmanager
async def open_peer(
    connection: Connection, link: Link, service: Service, info: PeerInfo, *, keepalive: bool = True
) -> AsyncIterator[Peer]:
    """Run a session that ends with its one `link` while the body runs; else as `open_session`.

    Without `keepalive` a silent peer is not taken for dead: for one whose death shows in other ways.
    """
    peer = Peer(connection, service, info, link.description)
    with one_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.run_link, link, Patience() if keepalive else None)
            async with open_session(peer):
                yield peer
