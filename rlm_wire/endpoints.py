"""connect() and serve(): URL → transport → handshake → session. The only module that sees transports and broker."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from rlm_wire import __version__
from rlm_wire.broker.groups import one_error
from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.services import Service
from rlm_wire.broker.session import open_peer
from rlm_wire.errors import AuthenticationError, HandshakeError, LaunchError, WireError
from rlm_wire.frames.codec import CODEC_NAMES, codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.framing import show
from rlm_wire.frames.handshake import ClientHandshake, Established, Handshake, ServerHandshake, Side
from rlm_wire.frames.limits import Limits
from rlm_wire.transports import ByteStream, Listener, transport_for

if TYPE_CHECKING:
    import ssl

    from rlm_wire.trace import Trace

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds from the first byte's chance to Welcome. Spec §3.5."""

LAUNCH_TIMEOUT: Final = 60.0
"""The same where a command is started first: pulling a container or logging in takes its time."""

STRANGERS_LIMIT: Final = 64
"""Connections that may be in their handshake at once. Beyond it the oldest is dropped: it had its chance."""

REFUSAL_DELAY: Final = 0.5
"""Seconds before a wrong token is answered: guessing must be slow."""

SOFTWARE: Final = f"rlm-wire/{__version__} python/{platform.python_version()}"

Watch = Callable[[ByteStream], ByteStream]
"""Puts a trace around a stream, or does nothing."""


@asynccontextmanager
async def connect(
    url: str,
    service: Service | None = None,
    token: str | bytes | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    codec: str | None = None,
    trace: Trace | None = None,
) -> AsyncIterator[Peer]:
    """Open a session with the server at `url` and close it on leaving.

    `url`: `stdio:COMMAND`, `tcp://HOST:PORT`, `tls://HOST:PORT`, `unix:PATH`, `memory:NAME`, or one of an installed
    transport. `service` answers the calls that the server makes. `token` is the shared secret, needed where the stream
    is not private by construction; without `ssl_context`, `tls:` trusts whoever proves to know the token. `codec`:
    `msgpack` or `json`, if only one will do. `trace` records every frame.

    Raises TransportError (not reached), LaunchError (a command ended first), HandshakeError (no agreement within
    HANDSHAKE_TIMEOUT), AuthenticationError. Cancellation: closes the stream.
    """
    transport, address = transport_for(url)
    ours = _Ours(service or Service(), token, limits or Limits(), [codec_named(codec).name] if codec else CODEC_NAMES)
    async with _traced(trace) as watch, transport.connect(address, ssl_context=ssl_context) as plain_stream:
        stream = watch(plain_stream)
        timeout = LAUNCH_TIMEOUT if stream.skips_banner else HANDSHAKE_TIMEOUT
        agreed = await _agree(
            stream, lambda: ClientHandshake(ours.side(stream), skip_banner=stream.skips_banner), timeout
        )
        async with _session(stream, agreed, ours, client=True) as peer:
            yield peer


@asynccontextmanager
async def serve(
    url: str,
    service: Service,
    token: str | bytes | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    trace: Trace | None = None,
) -> AsyncIterator[Server]:
    """Answer calls at `url` while the body runs; leaving ends every session with a Goodbye.

    `url` as for `connect`; `stdio:` alone serves this process's own stdin and stdout. `tcp:` and `tls:` need a `token`.
    `trace` records every frame of every connection.
    Raises TransportError if the address cannot be had, AuthenticationError if a token is needed and missing.
    """
    transport, address = transport_for(url)
    if not token and url.partition(":")[0].lower() in ("tcp", "tls"):
        raise AuthenticationError(f"{url} can be reached by strangers: serving it needs a token")
    with one_error():
        async with (
            _traced(trace) as watch,
            transport.listen(address, ssl_context=ssl_context) as listener,
            trio.open_nursery() as nursery,
        ):
            server = Server(listener, _Ours(service, token, limits or Limits()), watch)
            nursery.start_soon(server.accept)
            yield server
            nursery.cancel_scope.cancel("the server is closing")


class Server:
    """A service being served.

    `urls` are its real addresses, ports included. `refusal` is why the last client that came to no session did not, or
    None: on stdio, where there is one client, whether anybody was served.
    """

    def __init__(self, listener: Listener, ours: _Ours, watch: Watch) -> None:
        self.urls = list(listener.urls)
        self.refusal: WireError | None = None
        self._watch = watch
        self._listener = listener
        self._ours = ours
        self._strangers: dict[ByteStream, trio.CancelScope] = {}
        self._closed = trio.Event()

    async def wait_closed(self) -> None:
        """Wait until no peer can come any more and all are gone: on stdio when the client has left, else for ever."""
        await self._closed.wait()

    async def accept(self) -> None:
        """Accept peers until there are no more, and serve each in a task of its own."""
        with one_error():
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        stream = self._watch(await self._listener.accept())
                    except trio.EndOfChannel:
                        break
                    if len(self._strangers) >= STRANGERS_LIMIT:
                        oldest = next(iter(self._strangers))
                        self._strangers.pop(oldest).cancel("too many connections in their handshake")
                    scope = self._strangers[stream] = trio.CancelScope()  # here: many may come before their tasks run
                    nursery.start_soon(self._serve, stream, scope)
        self._closed.set()

    async def _serve(self, stream: ByteStream, stranger: trio.CancelScope) -> None:
        agreed: _Agreed | None = None
        try:
            with stranger:
                try:
                    agreed = await self._meet(stream)
                finally:
                    if agreed is None:  # a stranger counts, and may be dropped, until its descriptor is free again
                        await stream.aclose()
        finally:
            self._strangers.pop(stream, None)
        if agreed is not None:
            await self._serve_session(stream, agreed)

    async def _meet(self, stream: ByteStream) -> _Agreed | None:
        """The handshake with a stranger. None if it came to nothing."""
        session = os.urandom(16).hex()
        try:
            return await _agree(
                stream, lambda: ServerHandshake(self._ours.side(stream), session=session), HANDSHAKE_TIMEOUT
            )
        except WireError as error:
            self.refusal = error
            logger.info("refused %s: %s", stream.description, error)
        return None

    async def _serve_session(self, stream: ByteStream, agreed: _Agreed) -> None:
        try:
            async with _session(stream, agreed, self._ours, client=False) as peer:
                await peer.wait_closed()
        except Exception:  # one session's failure, a bug in its lifespan say, must not end the others
            logger.exception("the session with %s failed", stream.description)
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()


def _traced(trace: Trace | None) -> AbstractAsyncContextManager[Watch]:
    if trace is None:
        return nullcontext(lambda stream: stream)
    from rlm_wire.trace import traced  # here: its decoders are built on import, and few programs trace

    return traced(trace)


class _Ours(msgspec.Struct, frozen=True):
    """What this endpoint brings to each of its sessions."""

    service: Service
    token: str | bytes | None
    limits: Limits
    codecs: Sequence[str] = CODEC_NAMES

    def side(self, stream: ByteStream) -> Side:
        """For the handshake on `stream`, once that has agreed on its own encryption."""
        return Side(
            software=SOFTWARE,
            nonce=os.urandom(32),
            features=self.service.features,
            limits=self.limits,
            codecs=list(self.codecs),
            token=self.token.encode() if isinstance(self.token, str) else self.token,
            private=stream.private,
            channel_binding=stream.channel_binding,
        )

    def __repr__(self) -> str:  # the token must not reach a log
        return "<what this endpoint brings>"


class _Agreed(msgspec.Struct, frozen=True):
    """A handshake that came to a good end, and the buffer with what followed it."""

    handshake: Handshake
    established: Established


async def _agree(stream: ByteStream, begin: Callable[[], Handshake], timeout: float) -> _Agreed:
    """Shake hands on `stream`. Raises HandshakeError or TransportError, which say what was seen."""
    handshake: Handshake | None = None
    try:
        with trio.fail_after(timeout):
            await stream.handshake()
            handshake = begin()
            return _Agreed(handshake, await _shake(stream, handshake))
    except trio.TooSlowError:
        seen = (handshake.banner + handshake.buffer.peek()) if handshake else b""
        what = f"only {show(seen)}" if seen else "nothing"
        error: WireError = HandshakeError(
            f"{stream.description}: no handshake within {timeout:.0f} s, {what} was received"
        )
    except WireError as problem:
        error = problem
    raise _explain(error, stream) from None


async def _shake(stream: ByteStream, handshake: Handshake) -> Established:
    while True:
        outgoing = handshake.data_to_send()
        outcome = handshake.outcome
        if isinstance(outcome, AuthenticationError) and outgoing:
            await trio.sleep(REFUSAL_DELAY)
        if outgoing:
            await stream.send(outgoing)
        if isinstance(outcome, HandshakeError):
            raise outcome
        if outcome is not None:
            return outcome
        count = await stream.receive_into(handshake.buffer.writable())
        if not count:
            raise handshake.end_of_stream()
        handshake.received(count)


def _explain(error: WireError, stream: ByteStream) -> WireError:
    """The same error, with the address and what the stream knows of its end."""
    why = stream.diagnose()
    message = f"{stream.description}: {str(error).removeprefix(f'{stream.description}: ')}"
    if why:
        message += f" ({why})"
    exit_code = getattr(stream, "exit_code", None)
    if exit_code is not None:
        return LaunchError(message, exit_code=exit_code, stderr=getattr(stream, "stderr", ""))
    return type(error)(message)


@asynccontextmanager
async def _session(stream: ByteStream, agreed: _Agreed, ours: _Ours, *, client: bool) -> AsyncIterator[Peer]:
    """The session on a stream that has shaken hands."""
    established = agreed.established
    connection = Connection(
        client=client,
        codec=codec_named(established.codec),
        ours=ours.limits,
        theirs=established.limits,
        buffer=agreed.handshake.buffer,
    )
    info = PeerInfo(
        software=established.software,
        version=established.version,
        codec=established.codec,
        features=established.features,
        limits=connection.limits,
        session=established.session,
    )
    async with open_peer(connection, stream, ours.service, info) as peer:
        yield peer
