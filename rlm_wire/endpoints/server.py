"""serve(): accepting streams, and the sessions that they open or resume."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.services import Service
from rlm_wire.endpoints.held import Claim, HeldSession
from rlm_wire.endpoints.meeting import Agreed, Ours, Watch, Way, agree, limits_over, new_peer, traced
from rlm_wire.errors import AuthenticationError, WireError
from rlm_wire.frames.handshake import ServerHandshake
from rlm_wire.frames.limits import Limits
from rlm_wire.transports import ByteStream, Listener, transport_for

if TYPE_CHECKING:
    import ssl

    from rlm_wire.trace import Trace

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds from accepting a stream to Welcome. Spec §3.5."""

STRANGERS_LIMIT: Final = 64
"""Connections that may be in their handshake at once. Beyond it the oldest is dropped: it had its chance."""


@asynccontextmanager
async def serve(
    url: str,
    service: Service,
    token: str | bytes | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    patience: Patience | None = None,
    trace: Trace | None = None,
) -> AsyncIterator[Server]:
    """Answer calls at `url` while the body runs; leaving ends every session with a Goodbye.

    `url` as for `connect`; `stdio:` alone serves this process's own stdin and stdout. `tcp:` and `tls:` need a `token`.
    `trace` records every frame of every connection.

    A session whose connection broke is kept for the `lease` of `limits` (the lower of both sides' counts), then ended
    as if closed; `stdio:`, which has one connection only, keeps none. `patience` says when a silent peer is given up.

    Raises TransportError if the address cannot be had, AuthenticationError if a token is needed and missing.
    """
    transport, address = transport_for(url)
    if not token and url.partition(":")[0].lower() in ("tcp", "tls"):
        raise AuthenticationError(f"{url} can be reached by strangers: serving it needs a token")
    ours = Ours(service, token, limits_over(transport, limits), patience or Patience())
    async with traced(trace) as watch, open_server(Way(transport, address, ssl_context, watch), ours) as server:
        yield server


@asynccontextmanager
async def open_server(way: Way, ours: Ours) -> AsyncIterator[Server]:
    """Answer calls to what `way` names; else as `serve`."""
    with one_error():
        async with (
            way.transport.listen(way.address, ssl_context=way.ssl_context) as listener,
            trio.open_nursery() as nursery,
        ):
            server = Server(listener, ours, way.watch)
            nursery.start_soon(server.accept)
            yield server
            nursery.cancel_scope.cancel("the server is closing")


class Server:
    """A service being served.

    `urls` are its real addresses, ports included. `refusal` is why the last client that came to no session did not, or
    None: on stdio, where there is one client, whether anybody was served.
    """

    def __init__(self, listener: Listener, ours: Ours, watch: Watch) -> None:
        self.urls = list(listener.urls)
        self.refusal: WireError | None = None
        self._watch = watch
        self._listener = listener
        self._ours = ours
        self._strangers: dict[ByteStream, trio.CancelScope] = {}
        self._sessions: dict[str, HeldSession] = {}
        self._nursery: trio.Nursery | None = None
        self._closed = trio.Event()

    async def wait_closed(self) -> None:
        """Wait until no peer can come any more and all are gone: on stdio when the client has left, else for ever."""
        await self._closed.wait()

    @property
    def sessions(self) -> dict[str, Peer]:
        """The peers of the sessions that are held now, by the session's id; also of those without a connection."""
        return {name: session.peer for name, session in self._sessions.items()}

    async def accept(self) -> None:
        """Accept streams until there are no more. Each has a task of its own, and so has each session."""
        with one_error():
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                while True:
                    try:
                        stream = self._watch(await self._listener.accept())
                    except trio.EndOfChannel:
                        break
                    if len(self._strangers) >= STRANGERS_LIMIT:
                        oldest = next(iter(self._strangers))
                        self._strangers.pop(oldest).cancel("too many connections in their handshake")
                    self._strangers[stream] = scope = trio.CancelScope()
                    nursery.start_soon(self._attend, stream, scope)
        self._closed.set()

    async def _attend(self, stream: ByteStream, scope: trio.CancelScope) -> None:
        """Shake hands on `stream`, within `scope`, and lend it to the session that it opens or resumes."""
        claim: Claim | None = None

        def lookup(session_id: str) -> Claim | None:
            nonlocal claim
            held = self._sessions.get(session_id)
            claim = Claim(held) if held is not None and held.resumable else None
            return claim

        agreed: Agreed | None = None
        try:
            with scope:
                try:
                    agreed = await self._meet(stream, lookup)
                finally:
                    if agreed is None:  # a stranger counts, and may be dropped, until its descriptor is free again
                        await stream.aclose()
        finally:
            self._strangers.pop(stream, None)
        if agreed is not None:
            await self._lend(stream, agreed, claim)

    async def _lend(self, stream: ByteStream, agreed: Agreed, claim: Claim | None) -> None:
        established, buffer = agreed.established, agreed.handshake.buffer
        try:
            if claim is not None:
                await claim.session.attend(claim, stream, established.received, buffer)
            else:
                await self._open(agreed, stream).attend(None, stream, None, buffer)
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()

    async def _meet(self, stream: ByteStream, lookup: Callable[[str], Claim | None]) -> Agreed | None:
        """The handshake with a stranger. None if it came to nothing."""
        ours = self._ours
        session, secret = os.urandom(16).hex(), os.urandom(32)

        def begin() -> ServerHandshake:
            return ServerHandshake(ours.side(stream), session=session, secret=secret, lookup=lookup)

        try:
            return await agree(stream, begin, HANDSHAKE_TIMEOUT)
        except WireError as error:
            self.refusal = error
            logger.info("refused %s", error)
        return None

    def _open(self, agreed: Agreed, stream: ByteStream) -> HeldSession:
        assert self._nursery is not None
        peer = new_peer(agreed, self._ours, stream, client=False)
        session = HeldSession(peer, agreed.established, self._ours.patience)
        self._sessions[peer.info.session] = session
        self._nursery.start_soon(self._hold, session)
        return session

    async def _hold(self, session: HeldSession) -> None:
        try:
            await session.run()
        except Exception:  # one session's failure, a bug in its lifespan say, must not end the others
            logger.exception("the session with %r failed", session.peer)
        finally:
            self._sessions.pop(session.peer.info.session, None)
