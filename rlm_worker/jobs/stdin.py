"""The input of a job: written to as fast as the job reads; a pipe is closed once, a terminal only with the job."""

from __future__ import annotations

import errno
import os

import trio

from rlm_wire.errors import CallError
from rlm_worker.processes.descriptors import duplicate, pipe

WRITE_LIMIT = 1024 * 1024
"""Bytes of one write: they are held in memory while the job does not read."""


_CLOSED = "the stdin of this job was closed"


END_OF_FILE = b"\x04"
"""What ends the input of whoever reads lines from a terminal."""


class JobInput:
    """The writing end. `read_end` is for the job to be started with; `started` closes our copy of it.

    With our end of a `terminal`, that is the writing end.
    """

    def __init__(self, terminal: int | None = None) -> None:
        self._terminal = terminal is not None
        self.read_end, self._write_end = pipe() if terminal is None else (-1, duplicate(terminal))
        os.set_blocking(self._write_end, False)
        self._turn = trio.Lock()
        self._why_closed = ""

    def started(self) -> None:
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1

    async def write(self, data: bytes) -> None:
        """Write all of it. Raises CallError: `invalid_argument` (too much), `failed_precondition` (nobody reads).

        Cancellation: part of it may have been written.
        """
        if len(data) > WRITE_LIMIT:
            raise CallError("invalid_argument", f"write {WRITE_LIMIT} bytes at most at a time")
        async with self._turn:
            view = memoryview(data)
            while view:
                self._check_open()
                try:
                    view = view[os.write(self._write_end, view) :]
                except BlockingIOError:
                    try:
                        await trio.lowlevel.wait_writable(self._write_end)
                    except trio.ClosedResourceError:
                        self._check_open()
                except OSError as error:
                    if error.errno not in (errno.EPIPE, errno.EIO):
                        raise
                    raise CallError("failed_precondition", "the job does not read its stdin any more") from None

    async def close(self) -> None:
        """End of file, behind what is being written. Raises CallError if the job has ended.

        Cancellation: not closed.
        """
        if self._terminal:
            await self.write(END_OF_FILE)
            return
        async with self._turn:
            if self._write_end < 0 and self._why_closed != _CLOSED:
                self._check_open()
            self.end(_CLOSED)

    def end(self, why: str) -> None:
        """Close it at once; who is writing is told `why`."""
        if self._write_end >= 0:
            trio.lowlevel.notify_closing(self._write_end)
            os.close(self._write_end)
            self._write_end = -1
        self.started()
        self._why_closed = why

    def _check_open(self) -> None:
        if self._write_end < 0:
            raise CallError("failed_precondition", self._why_closed)
