"""The way to the peer: one link after another, each with a reader, the writer and a keep-alive of its own.

What ends a link ends its tasks, and nothing else: whether the session goes on over another one is decided above. The
reader never writes and never waits for a handler: it decodes a batch of frames, hands them on, and lets the writer
flush once at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.broker.keepalive import keep_alive
from rlm_wire.broker.link import Link
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.writer import Writer
from rlm_wire.errors import TransportError, WireError
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.events import Ended, Event
from rlm_wire.frames.schema import Goodbye

LAST_WORDS: Final = 1.0
"""Seconds for what is still on its way when one direction of a link has ended: the peer's reason, or ours."""

BATCH: Final = 128
"""Frames taken before other sessions get their turn: what one read brings may be thousands of calls, and would hold up
all others for as long as these take to begin."""


class Line:
    """See the module. `handle` takes each batch of events, and sets `ended` when one of them is the session's end."""

    def __init__(self, connection: Connection, handle: Callable[[list[Event]], None]) -> None:
        self.connection = connection
        self.writer = Writer(connection)
        self.ready = trio.Event()
        """Set when frames may be received."""
        self.link: Link | None = None
        self.ended: Ended | None = None
        self.batches = 0
        self._handle = handle
        self._scope = trio.CancelScope()
        self._error: WireError | None = None

    async def run(self, link: Link, patience: Patience | None) -> WireError | None:
        """Send and receive over `link` until it ends; the reason, None if the peer said Goodbye or `leave` was called.

        Shielded: when the session's user is cancelled, its calls still wait for the peer's word on them, and the
        Goodbye must leave. Without `patience` a silent peer is not taken for dead.
        """
        scope = self._scope = trio.CancelScope(shield=True)
        self.link, self._error = link, None
        self.writer.use(link)
        with scope, one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self.ready.wait()
                if patience is not None:
                    nursery.start_soon(self._watch, patience)
                await self._read(link)
                scope.cancel("the link has ended")
        self.link = None
        return self._error

    async def _read(self, link: Link) -> None:
        connection = self.connection
        try:
            self._handle(connection.process(BATCH))  # what came right behind the handshake
            while self.ended is None:
                if connection.unfinished:
                    await trio.lowlevel.checkpoint()
                    if self.link is not link:
                        return
                    self._handle(connection.process(BATCH))
                    continue
                count = await link.receive_into(connection.writable())
                if self.link is not link:
                    return
                self.batches += 1
                if not count:
                    self._error = connection.end_of_stream().error
                    return
                self._handle(connection.received(count, BATCH))
        except (TransportError, trio.ClosedResourceError) as error:
            self._fail(error)
            return
        self._error = self.ended.error
        with trio.move_on_after(LAST_WORDS):
            await self.writer.drain()

    async def _write(self) -> None:
        try:
            await self.writer.run()
        except (TransportError, trio.ClosedResourceError) as error:
            self._fail(error)
            self._scope.deadline = trio.current_time() + LAST_WORDS  # the peer may have said why

    async def _watch(self, patience: Patience) -> None:
        try:
            await keep_alive(self, patience)
        except TransportError as error:
            self._fail(error)
            self._scope.cancel("the peer is silent")

    def _fail(self, error: TransportError | trio.ClosedResourceError) -> None:
        if self._error is None:
            self._error = error if isinstance(error, TransportError) else TransportError("the stream is closed")

    def ping(self, token: int) -> None:
        self.connection.ping(token)
        self.writer.flush()

    def leave(self, farewell: Goodbye | None) -> None:
        """End the link, if there is one: nothing more is taken from it. `farewell` is said if that needs no wait."""
        if self.link is not None:
            self.link = None
            self.writer.leave(farewell)
            self._scope.cancel("the link is left")
