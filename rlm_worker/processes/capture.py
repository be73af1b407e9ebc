"""Keeping output: from pipes into head, tail and exact totals, and on to whoever watches it live.

Memory is bounded whatever a command prints, and the totals are those of the whole stream. Live output is complete as
long as its receiver keeps up: up to `LIVE_WAITING` bytes wait for it, and the command waits for it too, but no longer
than `STALL_BUDGET` seconds in all. After that the oldest of what waits is dropped and counted (`OutputChunk.skipped`):
a slow receiver sees the newest output, and neither stalls the command nor costs memory. Head and tail stay exact.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import struct
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.methods.tools import Output, OutputChunk

KEPT = 512 * 1024
"""Bytes kept of the beginning and of the end, each: several times what a model is shown."""

CHUNK = 64 * 1024
"""Most bytes of one live chunk: what a full pipe holds, and one slice on the wire."""

LIVE_WAITING = 1024 * 1024
"""Most bytes of live output that wait for the receiver: as much as is kept of the output in the end."""

GATHER = 0.05
"""Seconds for which live output is gathered: twenty updates a second look live, and a short command needs one."""

STALL_BUDGET = 1.0
"""Seconds in all for which a command may be held up by a receiver that lags."""

LAST_WAIT = 1.0
"""Seconds that the receiver gets for each of the last chunks, once the command has ended."""

READ_SIZE = 64 * 1024

Sink = Callable[[OutputChunk], Awaitable[None]]


class Capture:
    """What was fed so far: head, tail, totals. Made by `open_capture`."""

    def __init__(self, live: _LiveOutput | None = None) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._bytes = 0
        self._chars = 0
        self._lines = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._inside_character = False
        self._live = live

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._bytes += len(data)
        self._lines += data.count(b"\n")
        if data.isascii() and not self._inside_character:
            self._chars += len(data)
        else:
            self._chars += len(self._decoder.decode(data))
            self._inside_character = bool(self._decoder.getstate()[0])
        room = KEPT - len(self._head)
        if room > 0:
            self._head += data[:room]
        self._tail += data[max(room, 0) :]
        if len(self._tail) > 2 * KEPT:  # not sooner: so each byte is moved once at most
            del self._tail[:-KEPT]
        if self._live is not None:
            self._live.feed(data)

    def output(self) -> Output:
        """The output as if the stream ended here; feeding may go on."""
        tail = bytes(self._tail[-KEPT:])
        unfinished = 1 if self._inside_character else 0  # one replacement mark for a character cut by the end
        return Output(
            head=bytes(self._head),
            tail=tail,
            bytes=self._bytes,
            chars=self._chars + unfinished,
            lines=self._lines,
            omitted=self._bytes - len(self._head) - len(tail),
        )

    async def read(self, descriptor: int) -> None:
        """Feed what comes out of a non-blocking pipe, until all its writers have closed it.

        Several tasks may read one pipe each into the same capture. Cancellation: what was not read is still in the
        pipe; `drain` takes it.
        """
        while True:
            try:
                data = os.read(descriptor, READ_SIZE)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(descriptor)
                continue
            if not data:
                return
            self.feed(data)
            await trio.lowlevel.checkpoint()
            if self._live is not None:
                await self._live.make_room()

    def drain(self, descriptor: int) -> None:
        """Feed what is in the pipe at this moment: all that ended processes wrote, and no more.

        Never waits, also if a background job writes without end.
        """
        (left,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
        while left > 0 and (data := os.read(descriptor, min(left, READ_SIZE))):
            self.feed(data)
            left -= len(data)


@asynccontextmanager
async def open_capture(sink: Sink | None = None) -> AsyncIterator[Capture]:
    """A capture whose live output goes to `sink` until the block is left; the last of it is sent then.

    Chunks are at most `CHUNK` bytes and gathered for `GATHER` seconds. On leaving, the sink gets `LAST_WAIT` seconds
    for each chunk that is left. An exception of the sink ends the block.
    Cancellation: what was not sent yet is dropped; the capture itself loses nothing.
    """
    if sink is None:
        yield Capture()
        return
    with one_error():
        async with trio.open_nursery() as nursery:
            live = _LiveOutput(nursery.cancel_scope)
            nursery.start_soon(live.forward, sink)
            yield Capture(live)
            live.finish()


class _LiveOutput:
    """What the sink has not been given yet. `scope` is the one that forwarding runs in."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._waiting = bytearray()
        self._skipped = 0
        self._stall_left = STALL_BUDGET
        self._finished = False
        self._some = trio.Event()
        self._enough = trio.Event()
        self._taken = trio.Event()

    def feed(self, data: bytes) -> None:
        self._waiting += data
        excess = len(self._waiting) - LIVE_WAITING
        if excess > 0:
            del self._waiting[:excess]
            self._skipped += excess
        self._some.set()
        if len(self._waiting) >= CHUNK:
            self._enough.set()

    async def make_room(self) -> None:
        """Wait until the next bytes have room, as far as the budget allows."""
        start = trio.current_time()
        with trio.move_on_at(start + self._stall_left):
            while len(self._waiting) > LIVE_WAITING - READ_SIZE and self._stall_left > 0:
                self._taken = trio.Event()
                await self._taken.wait()
        self._stall_left -= trio.current_time() - start

    def finish(self) -> None:
        """There will be no more: `forward` sends the rest, at its receiver's pace while that is not too slow."""
        self._finished = True
        self._scope.deadline = trio.current_time() + LAST_WAIT
        self._some.set()
        self._enough.set()

    async def forward(self, sink: Sink) -> None:
        while self._waiting or not self._finished:
            await self._some.wait()
            with trio.move_on_after(GATHER):
                await self._enough.wait()
            if self._waiting:
                await sink(self._take())
            if self._finished:
                self._scope.deadline = trio.current_time() + LAST_WAIT

    def _take(self) -> OutputChunk:
        chunk = OutputChunk(bytes(self._waiting[:CHUNK]), self._skipped)
        del self._waiting[:CHUNK]
        self._skipped = 0
        if not self._finished:
            if not self._waiting:
                self._some = trio.Event()
            if len(self._waiting) < CHUNK:
                self._enough = trio.Event()
        self._taken.set()
        return chunk
