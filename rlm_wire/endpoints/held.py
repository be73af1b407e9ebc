"""A session as its server keeps it: the streams that open and resume it, and how long it waits for the next one."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec
import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.session import open_session
from rlm_wire.errors import RemoteProtocolError, SessionLost, TransportError
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.framing import ReceiveBuffer
from rlm_wire.frames.handshake import Established
from rlm_wire.frames.limits import HEADER_SIZE, Limits
from rlm_wire.frames.schema import Goodbye, Resume
from rlm_wire.transports import ByteStream

FAREWELL_GRACE: Final = 1.0
"""Seconds for telling a stream that came too late."""

TAKEN_OVER: Final = Goodbye("unavailable", "another connection has resumed this session")


class _Arrival(msgspec.Struct):
    """A stream that the session is to go on over; `received` is None for its first one. `done`: it may be closed."""

    stream: ByteStream
    received: int | None
    buffer: ReceiveBuffer
    done: trio.Event = msgspec.field(default_factory=trio.Event)


class HeldSession:
    """One session of a server. `run` is its task; `attend`, in another one, lends it a stream."""

    def __init__(self, peer: Peer, established: Established, patience: Patience) -> None:
        self.peer = peer
        self.established = established
        self._patience = patience
        self._attempt = 0
        self._claim: Claim | None = None
        self._arrival: _Arrival | None = None
        self._arrived = trio.Event()

    @property
    def resumable(self) -> bool:
        """False if it ends with its connection, or has ended."""
        return self.peer.info.limits.lease > 0 and not self.peer.closed

    def hand_over(self, claim: Claim, resume: Resume) -> int:
        """`claim` has been proved: it comes instead of any other, and the old link ends. See `Held.take_over`."""
        if resume.attempt < self._attempt:
            raise RemoteProtocolError("a later connection has resumed the session", code="failed_precondition")
        self.peer.check_resume_untrusted(resume.received)
        self._attempt = resume.attempt
        self._claim = claim
        self.peer.leave_link(TAKEN_OVER)
        return self.peer.frames_received

    async def attend(
        self, claim: Claim | None, stream: ByteStream, received: int | None, buffer: ReceiveBuffer
    ) -> None:
        """Have the session go on over `stream`; return when it needs it no longer. Shielded: the Goodbye must leave."""
        if claim is not self._claim or self.peer.closed:
            await self._turn_away(stream)
            return
        self._release()
        self._arrival = arrival = _Arrival(stream, received, buffer)
        self._arrived.set()
        with trio.CancelScope(shield=True):
            await arrival.done.wait()

    async def run(self) -> None:
        """The session, until it is closed or lost. Cancellation: it ends in order, with a Goodbye."""
        try:
            with one_error():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._run_links)
                    async with open_session(self.peer):
                        await self.peer.wait_closed()
                    nursery.cancel_scope.cancel("the session has ended")
        finally:
            self._release()

    async def _run_links(self) -> None:
        peer = self.peer
        lease = peer.info.limits.lease
        while not peer.closed:
            with trio.move_on_after(lease or FAREWELL_GRACE) as waiting:
                await self._arrived.wait()
            if waiting.cancelled_caught:
                peer.lose(SessionLost(f"{peer.interruption}; and the client did not come back within {lease} s"))
                return
            arrival, self._arrival = self._arrival, None
            self._arrived = trio.Event()
            assert arrival is not None
            try:
                if arrival.received is not None:
                    peer.resume(arrival.received, arrival.buffer)
                await peer.run_link(arrival.stream, self._patience)
            finally:
                arrival.done.set()

    def _release(self) -> None:
        """Let a stream go that has not been used yet."""
        if self._arrival is not None:
            self._arrival.done.set()

    async def _turn_away(self, stream: ByteStream) -> None:
        body = codec_named(self.established.codec).encode(TAKEN_OVER)
        with trio.move_on_after(FAREWELL_GRACE), suppress(TransportError, trio.ClosedResourceError):
            await stream.send([len(body).to_bytes(HEADER_SIZE, "big") + body])


class Claim:
    """One handshake's wish to resume `session`: what `rlm_wire.frames.handshake.Held` asks for."""

    def __init__(self, session: HeldSession) -> None:
        self.session = session

    @property
    def secret(self) -> bytes:
        return self.session.established.secret

    @property
    def version(self) -> int:
        return self.session.established.version

    @property
    def codec(self) -> str:
        return self.session.established.codec

    @property
    def limits(self) -> Limits:
        return self.session.peer.info.limits

    def take_over(self, resume: Resume) -> int:
        return self.session.hand_over(self, resume)
