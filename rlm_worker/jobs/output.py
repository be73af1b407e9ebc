"""What one command printed: in memory while it is little, then in one file of bounded size, readable by byte position.

The file keeps the beginning and the newest part: its first half is filled once, its second half is written round and
round. What lies between is the gap, of which there is one at most, also if a full disk or an eviction made it. The
first 16 KiB and the last 8 KiB are in memory in any case, so that a short text needs no disk and survives a full one.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import trio

from rlm_wire.methods.jobs import OutputRange
from rlm_worker.jobs.characters import cut
from rlm_worker.jobs.disk import Disk

HEAD = 16 * 1024
"""Bytes of the beginning in memory: as much as a model is shown at once, and more than most commands print."""

TAIL = 8 * 1024
"""Bytes of the end in memory: half of what a model is shown."""

READ_SIZE = 256 * 1024
"""Bytes taken from a pipe, and given to the disk, at a time; the pipe is made as large if the system allows it."""

LONGEST_CHARACTER = 4

_PAST = "more was printed than is kept of one job"
_NO_ROOM = "the jobs' room on disk is used up"
_EVICTED = "it was removed to make room for newer output"


class KeptOutput:
    """The output of one command, fed by `fill`. `name` must be unique on `disk`; `limit` bounds the file."""

    def __init__(self, disk: Disk, name: str, limit: int) -> None:
        self.total = 0
        self.complete = False
        """Nothing more can come."""
        self.finished = False
        """Nothing more will be kept."""
        self.path: Path | None = None
        self.reason: str | None = None
        """Why some of it is not there any more."""
        self._disk = disk
        self._name = name
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._gap: tuple[int, int] | None = None
        self._descriptor = -1
        self._on_disk = 0
        self._lock = trio.Lock()
        self._grown = trio.Event()

    @property
    def truncated(self) -> bool:
        return self._gap is not None

    def continue_with(self) -> None:
        """Another pipe will be read: the output goes on, for instance with the next run of a service."""
        self.complete = False

    async def fill(self, descriptor: int) -> None:
        """Keep what comes out of a non-blocking pipe, until all its writers have closed it.

        The writer waits while the disk does. Cancellation: nothing that was read is lost; go on with `drain`.
        """
        with suppress(OSError):  # it stays as it is, and is only slower
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, READ_SIZE)
        while True:
            try:
                data = _read(descriptor, READ_SIZE)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(descriptor)
                continue
            if not data:
                self.complete = True
                self._tell()
                return
            await self.feed(data)

    async def drain(self, descriptor: int) -> None:
        """Keep what is in the pipe at this moment and no more; notices if it was closed. Never waits for a writer."""
        left = 4 * READ_SIZE  # more than a pipe holds, unless somebody made it larger still
        while left > 0:
            try:
                data = _read(descriptor, min(left, READ_SIZE))
            except BlockingIOError:
                return
            if not data:
                self.complete = True
                return
            left -= len(data)
            await self.feed(data)

    async def feed(self, data: bytes) -> None:
        """Take the next bytes. Cancellation: not noticed; it takes as long as the disk."""
        with trio.CancelScope(shield=True):
            async with self._lock:
                self._head += data[: max(HEAD - len(self._head), 0)]
                if self.total + len(data) > HEAD:
                    await self._write(data)
                self.total += len(data)
                self._tail += data[-TAIL:]
                if len(self._tail) > 4 * TAIL:
                    del self._tail[:-TAIL]
        self._tell()

    async def finish(self) -> None:
        """Nothing more will be fed: closes the file, which stays readable."""
        self.finished = True
        del self._tail[:-TAIL]
        if self._descriptor >= 0:
            with trio.CancelScope(shield=True):
                await self._disk.in_thread(self._close)
        self._tell()

    async def evict(self) -> bool:
        """Give up the file; False if there is none. What memory holds stays."""
        async with self._lock:
            if self.path is None:
                return False
            await self._disk.in_thread(_remove, self.path)
            self._give_up(_EVICTED)
        return True

    async def wait_beyond(self, position: int) -> None:
        """Return once there is something behind byte `position`, or there never will be."""
        while self.total <= position and not self.finished:
            await self._grown.wait()

    async def wait_finished(self) -> None:
        """Return once nothing more will be kept."""
        while not self.finished:
            await self._grown.wait()

    async def wait_complete(self) -> None:
        """Return once all writers have closed the pipe."""
        while not self.complete:
            await self._grown.wait()

    async def read(self, cursor: int, limit: int, wait: float = 0.0) -> OutputRange:
        """A piece of about `limit` bytes from `cursor` on, between characters; see `OutputRange`.

        `wait`: seconds to wait for one, if there is none yet. Cancellation: nothing happens.
        """
        with trio.move_on_after(wait):
            while wait > 0:
                known = self.total
                piece = await self._read(cursor, limit)
                if piece.data or piece.done:
                    return piece
                await self.wait_beyond(known)
        return await self._read(cursor, limit)

    async def _read(self, cursor: int, limit: int) -> OutputRange:
        async with self._lock:
            return await self._read_locked(cursor, limit)

    async def _read_locked(self, cursor: int, limit: int) -> OutputRange:
        start = min(cursor, self.total)
        gap_start, gap_end = self._readable_gap()
        skipped = 0
        if gap_start <= start < gap_end:
            skipped, start = gap_end - start, gap_end
        stop = gap_start if start < gap_start else self.total
        try:
            data = await self._bytes(start, min(stop, start + limit + LONGEST_CHARACTER - 1))
        except OSError as error:  # whoever works here may have removed the file
            self._give_up(f"{error.strerror}: {self.path}")
            return await self._read_locked(cursor, limit)
        final = stop != self.total or self.finished
        data = data[: cut(data, limit, final=final and start + len(data) == stop)]
        end = start + len(data)
        done = self.finished and end == self.total
        return OutputRange(data, cursor, end, done, skipped, self.reason if skipped else None)

    def head(self) -> bytes:
        """The first 16 KiB."""
        return bytes(self._head[: self.total])

    def tail(self, size: int = TAIL) -> bytes:
        """The last `size` bytes, 8 KiB at most."""
        return bytes(self._tail[-size:])

    # ------------------------------------------------------------------ the file

    async def _write(self, data: bytes) -> None:
        start = self.total
        if self.path is None and not self._gap:  # the file has what was in memory alone until now
            data, start = bytes(self._head[:start]) + data, 0
        end = start + len(data)
        growth = min(end, 2 * self._half) - self._on_disk
        if growth > 0:
            if not await self._disk.take(growth):
                self._lose(self.total, end, _NO_ROOM)
                return
            self._on_disk += growth
        try:
            await self._disk.in_thread(self._write_at, start, data)
        except OSError as error:
            where = error.filename or self.path or "the temporary directory"
            self._lose(self.total, end, f"{error.strerror}: {where}")
        if end > 2 * self._half:
            self._lose(self._half, end - self._half, self.reason if self._gap else _PAST)

    def _write_at(self, position: int, data: bytes) -> None:
        if self.path is None:
            self._close()
            self._descriptor, self.path = self._disk.create(self._name)
        view = memoryview(data)
        while view:
            offset, room = self._place(position)
            written = os.pwrite(self._descriptor, view[:room], offset)
            position += written
            view = view[written:]

    def _place(self, position: int) -> tuple[int, int]:
        """Where in the file a byte of the output is, and how many are in one piece from there."""
        if position < self._half:
            return position, self._half - position
        turned = (position - self._half) % self._half
        return self._half + turned, self._half - turned

    def _give_up(self, reason: str) -> None:
        """The file is no use any more; should more output come, it gets a new one."""
        self.path = None
        self._disk.give_back(self._on_disk)
        self._on_disk = 0
        self._lose(len(self._head), self.total, reason)

    def _lose(self, start: int, end: int, reason: str | None) -> None:
        """Widen the gap to `end`; whatever was kept between two losses goes with them."""
        gap_start, gap_end = self._gap or (max(start, len(self._head)), start)
        self._gap = min(gap_start, max(start, len(self._head))), max(gap_end, end)
        self.reason = reason

    def _readable_gap(self) -> tuple[int, int]:
        """The gap as readers meet it: the last bytes are in memory even if the file does not have them."""
        if self._gap is None:
            return self.total, self.total
        start, end = self._gap
        return start, max(start, min(end, self.total - len(self._tail[-TAIL:])))

    async def _bytes(self, start: int, stop: int) -> bytes:
        stop = min(stop, self.total)
        if start >= stop:
            return b""
        tail_start = self.total - len(self._tail[-TAIL:])
        if start >= tail_start:
            tail = self._tail[-TAIL:]
            return bytes(tail[start - tail_start : stop - tail_start])
        head = bytes(self._head[start:stop])
        start += len(head)
        if start >= stop or self.path is None:
            return head
        return head + await self._disk.in_thread(self._read_at, self.path, start, stop - start)

    def _read_at(self, path: Path, position: int, size: int) -> bytes:
        data = b""
        with open(path, "rb", buffering=0) as file:
            while len(data) < size:
                offset, room = self._place(position + len(data))
                piece = os.pread(file.fileno(), min(room, size - len(data)), offset)
                if not piece:
                    raise OSError(errno.EIO, "Shorter than what was written")
                data += piece
        return data

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # what a full disk or a broken one could not take shows when it is read
                os.close(descriptor)

    def _tell(self) -> None:
        self._grown.set()
        self._grown = trio.Event()


def _read(descriptor: int, size: int) -> bytes:
    """What is there, empty at the end. Raises BlockingIOError."""
    try:
        return os.read(descriptor, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""  # how a terminal says that nobody has it open any more


def _remove(path: Path) -> None:
    with suppress(OSError):  # it was removed already, or cannot be
        path.unlink()
