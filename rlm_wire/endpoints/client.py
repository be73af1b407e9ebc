"""connect(): one task that opens a stream, shakes hands and runs the session over it, again and again if need be."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.peer import CLOSED_HERE, Peer
from rlm_wire.broker.services import Service
from rlm_wire.broker.session import open_session
from rlm_wire.endpoints.meeting import Agreed, Ours, Way, agree, limits_over, new_peer, traced
from rlm_wire.errors import HandshakeError, ProtocolError, SessionLost, TransportError, WireError
from rlm_wire.frames.codec import CODEC_NAMES, codec_named
from rlm_wire.frames.handshake import ClientHandshake, Established, Resumption
from rlm_wire.frames.limits import Limits
from rlm_wire.transports import ByteStream, transport_for

if TYPE_CHECKING:
    import ssl

    from rlm_wire.trace import Trace

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds from the first byte's chance to Welcome. Spec §3.5."""

LAUNCH_TIMEOUT: Final = 60.0
"""The same where a command is started first: pulling a container or logging in takes its time."""


@asynccontextmanager
async def connect(
    url: str,
    service: Service | None = None,
    token: str | bytes | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    codec: str | None = None,
    patience: Patience | None = None,
    trace: Trace | None = None,
) -> AsyncIterator[Peer]:
    """Open a session with the server at `url` and close it on leaving.

    `url`: `stdio:COMMAND`, `relay:COMMAND`, `tcp://HOST:PORT`, `tls://HOST:PORT`, `unix:PATH`, `memory:NAME`, or one of
    an installed transport. `service` answers the calls that the server makes. `token` is the shared secret, needed
    where the stream is not private by construction; without `ssl_context`, `tls:` trusts whoever proves to know the
    token. `codec`: `msgpack` or `json`, if only one will do. `trace` records every frame.

    A connection that breaks is made again, for as long as the `lease` of `limits` (the lower of both sides' counts), at
    the pace of `patience`, and the session goes on; `peer.state` tells. Not so over `stdio:`, whose command is the
    server; `relay:` is for a command that leads to one, such as `rlm-worker attach`, and can be run again.

    Raises TransportError (not reached), LaunchError (a command ended first), HandshakeError (no agreement within
    HANDSHAKE_TIMEOUT), AuthenticationError. Cancellation: closes the stream.
    """
    transport, address = transport_for(url)
    codecs = [codec_named(codec).name] if codec else CODEC_NAMES
    ours = Ours(service or Service(), token, limits_over(transport, limits), patience or Patience(), codecs)
    async with traced(trace) as watch, open_client(Way(transport, address, ssl_context, watch), ours) as peer:
        yield peer


@asynccontextmanager
async def open_client(way: Way, ours: Ours) -> AsyncIterator[Peer]:
    """Open a session over `way` and close it on leaving; else as `connect`."""
    failure: BaseException | None = None
    try:
        with one_error():
            async with trio.open_nursery() as nursery:
                client = _Client(way, ours)
                peer: Peer = await nursery.start(client.run)
                try:
                    async with open_session(peer):
                        yield peer
                except BaseException as error:  # noqa: BLE001 - raised below: the stream is closed in peace before
                    failure = error
                client.stop()
    finally:
        if failure is not None:
            raise failure


class _Client:
    """A session with the server that `way` leads to."""

    def __init__(self, way: Way, ours: Ours) -> None:
        self._way = way
        self._ours = ours
        self._opened: tuple[Peer, Established] | None = None
        self._attempts = 0
        self._trying = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[Peer]) -> None:
        """Open the session, and keep it going until it is closed or lost. Raises what keeps it from being opened."""
        try:
            with trio.CancelScope() as hurry:
                async with self._way.connect() as stream:
                    agreed = await self._agree(stream, None)
                    peer = new_peer(agreed, self._ours, stream, client=True)
                    self._opened = peer, agreed.established
                    task_status.started(peer)
                    await trio.lowlevel.checkpoint_if_cancelled()  # nobody waits any more; a link would not notice
                    await self._run_link(peer, stream, hurry)
            assert self._opened is not None
            peer, established = self._opened
            while not peer.closed:
                await self._reconnect(peer, established)
        finally:
            if self._opened is not None:
                self._opened[0].lose(SessionLost(CLOSED_HERE))

    def stop(self) -> None:
        """The session is closed: do not reconnect any more."""
        self._trying.cancel("the session is closed")

    async def _agree(self, stream: ByteStream, resume: Resumption | None) -> Agreed:
        timeout = LAUNCH_TIMEOUT if stream.skips_banner else HANDSHAKE_TIMEOUT
        side = self._ours.side
        return await agree(
            stream, lambda: ClientHandshake(side(stream), skip_banner=stream.skips_banner, resume=resume), timeout
        )

    async def _run_link(self, peer: Peer, stream: ByteStream, hurry: trio.CancelScope) -> None:
        await peer.run_link(stream, self._ours.patience)
        if not peer.closed:
            hurry.cancel("a broken stream needs no polite end")

    async def _reconnect(self, peer: Peer, established: Established) -> None:
        """One more link, if there can be one within the lease; else the session is lost."""
        lease = peer.info.limits.lease
        problem: WireError | None = None
        self._trying = scope = trio.CancelScope(deadline=trio.current_time() + lease)
        with scope:
            for pause in self._ours.patience.pauses():
                await trio.sleep(pause)
                try:
                    await self._try_again(peer, established, scope)
                except (TransportError, HandshakeError, ProtocolError) as error:
                    problem = error
                    if not isinstance(error, TransportError) and getattr(error, "refused", True):
                        peer.lose(SessionLost(f"{peer.interruption}; and it cannot be resumed: {error}"))
                        return
                else:
                    return
        if scope.cancelled_caught:
            tried = f": {problem}" if problem else ""
            peer.lose(SessionLost(f"{peer.interruption}; and it could not be resumed within {lease} s{tried}"))

    async def _try_again(self, peer: Peer, established: Established, lease: trio.CancelScope) -> None:
        self._attempts += 1
        resume = Resumption(established, peer.frames_received, self._attempts)
        with trio.CancelScope() as hurry:
            async with self._way.connect() as stream:
                agreed = await self._agree(stream, resume)
                await trio.lowlevel.checkpoint_if_cancelled()  # the lease may have ended meanwhile
                lease.deadline = math.inf
                self._trying = trio.CancelScope()  # so that `stop` lets this link end in peace
                peer.resume(agreed.established.received, agreed.handshake.buffer)
                await self._run_link(peer, stream, hurry)
