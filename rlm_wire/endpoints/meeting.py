"""What client and server have in common: the handshake on a stream, and the peer that comes of it."""

from __future__ import annotations

import os
import platform
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from rlm_wire import __version__
from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.services import Service
from rlm_wire.errors import AuthenticationError, HandshakeError, LaunchError, WireError
from rlm_wire.frames.codec import CODEC_NAMES, codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.framing import show
from rlm_wire.frames.handshake import Established, Handshake, Side
from rlm_wire.frames.limits import Limits
from rlm_wire.transports import ByteStream, Transport

if TYPE_CHECKING:
    import ssl

    from rlm_wire.trace import Trace

REFUSAL_DELAY: Final = 0.5
"""Seconds before a wrong token is answered: guessing must be slow."""

SOFTWARE: Final = f"rlm-wire/{__version__} python/{platform.python_version()}"

Watch = Callable[[ByteStream], ByteStream]
"""Puts a trace around a stream, or does nothing."""


def traced(trace: Trace | None) -> AbstractAsyncContextManager[Watch]:
    """The function that puts `trace` around streams, if there is one."""
    if trace is None:
        return nullcontext(lambda stream: stream)
    from rlm_wire import trace as tracing  # here: its decoders are built on import, and few programs trace

    return tracing.traced(trace)


class Way(msgspec.Struct, frozen=True):
    """Where streams come from: a transport, an address that it understands, and what is put around each stream."""

    transport: Transport
    address: str
    ssl_context: ssl.SSLContext | None = None
    watch: Watch = lambda stream: stream

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[ByteStream]:
        """Open a stream, and close it on leaving."""
        async with self.transport.connect(self.address, ssl_context=self.ssl_context) as stream:
            yield self.watch(stream)


def limits_over(transport: Transport, limits: Limits | None) -> Limits:
    """The limits to state over `transport`: where no second connection leads to the same peer, there is no lease."""
    limits = limits or Limits()
    return limits if getattr(transport, "reconnects", False) else msgspec.structs.replace(limits, lease=0)


class Ours(msgspec.Struct, frozen=True):
    """What this endpoint brings to each of its sessions."""

    service: Service
    token: str | bytes | None
    limits: Limits
    patience: Patience
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


class Agreed(msgspec.Struct, frozen=True):
    """A handshake that came to a good end, and the buffer with what followed it."""

    handshake: Handshake
    established: Established


async def agree(stream: ByteStream, begin: Callable[[], Handshake], timeout: float) -> Agreed:
    """Shake hands on `stream`. Raises HandshakeError or TransportError, which say what was seen."""
    handshake: Handshake | None = None
    try:
        with trio.fail_after(timeout):
            await stream.handshake()
            handshake = begin()
            return Agreed(handshake, await _shake(stream, handshake))
    except trio.TooSlowError:
        seen = (handshake.banner + handshake.buffer.peek()) if handshake else b""
        what = f"only {show(seen)}" if seen else "nothing"
        error: WireError = HandshakeError(
            f"{stream.description}: no handshake within {timeout:.0f} s, {what} was received", refused=False
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
    if isinstance(error, HandshakeError):
        return type(error)(message, refused=error.refused)
    return type(error)(message)


def new_peer(agreed: Agreed, ours: Ours, stream: ByteStream, *, client: bool) -> Peer:
    """The peer of a new session, whose first link will be `stream`."""
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
    resumable = bool(connection.limits.lease and established.secret)
    return Peer(connection, ours.service, info, stream.description, resumable=resumable)
