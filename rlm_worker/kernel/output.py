"""The pipe behind a kernel's descriptors 1 and 2: read for the kernel's whole life, divided exactly into cells.

A kernel flushes before it says that a cell is over, so all that the cell wrote, also by C code and by commands that
have ended, is in the pipe by then: what the pipe holds at that moment still belongs to the cell. What comes between
two cells, from background tasks, threads and commands left running, opens the next cell's output, and a notice says so.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios
from typing import Final

import trio

from rlm_worker.processes import Capture
from rlm_worker.processes.descriptors import pipe

PIPE_SIZE: Final = 256 << 10
"""Large enough for a fast command, small enough that 64 kernels stay below an ordinary user's limit for all pipes."""

READ_SIZE: Final = 64 << 10

TRICKLE: Final = 4096
"""Bytes that a program gathers by itself before it writes to a pipe. Who writes less at a time writes each line."""

GATHER: Final = 0.002
"""Seconds to leave a trickle alone after a read: a loop that prints must not wake the worker for each line."""

BETWEEN_LIMIT: Final = 64 << 10
"""Bytes kept of what comes between two cells, the newest."""


class OutputPipe:
    """The read end. Made by `open_output`; `read` must run beside it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """-1 once closed."""
        self._capture: Capture | None = None
        self._between = bytearray()
        self._dropped = 0

    async def read(self) -> None:
        """Take in output until every writer has gone. Cancellation: nothing is lost, the pipe still holds it."""
        while True:
            await trio.lowlevel.wait_readable(self.descriptor)
            try:
                data = os.read(self.descriptor, READ_SIZE)
            except BlockingIOError:  # a cell's end took it first
                continue
            if not data:
                return
            self._take(data)
            if len(data) < (READ_SIZE if self._capture is None else TRICKLE):  # between cells there is no hurry
                await trio.sleep(GATHER)

    def attach(self, capture: Capture) -> list[str]:
        """A cell begins: from here on, output goes to `capture`, after what came since the last cell. Gives notices."""
        self._collect()
        self._capture = capture
        if not self._between:
            return []
        capture.feed(bytes(self._between))
        notice = f"The first {len(self._between)} bytes of the output were written between the cells, in the background"
        notice += f"; {self._dropped} bytes before them were dropped." if self._dropped else "."
        self._between.clear()
        self._dropped = 0
        return [notice]

    def _collect(self) -> None:
        """Take what the pipe holds at this moment, which nobody has been woken for yet: it came before the cell."""
        pending = array.array("i", [0])
        fcntl.ioctl(self.descriptor, termios.FIONREAD, pending)
        left = pending[0]
        while left > 0 and (data := os.read(self.descriptor, min(left, READ_SIZE))):
            self._take(data)
            left -= len(data)

    def detach(self) -> None:
        """The cell has ended: take what it left in the pipe. Never waits, whoever else writes on."""
        if self._capture is not None and self.descriptor >= 0:
            self._capture.drain(self.descriptor)
        self._capture = None

    def close(self) -> None:
        """The kernel is dead: take what it left, and close the pipe."""
        if self._capture is not None:
            self._capture.drain(self.descriptor)
        descriptor, self.descriptor = self.descriptor, -1
        os.close(descriptor)

    def _take(self, data: bytes) -> None:
        if self._capture is not None:
            self._capture.feed(data)
            return
        self._between += data
        excess = len(self._between) - BETWEEN_LIMIT
        if excess > 0:
            del self._between[:excess]
            self._dropped += excess


def open_output() -> tuple[OutputPipe, int]:
    """A fresh pipe: its reader, and its write end, which is the caller's. CallError as `descriptors.pipe`."""
    read_end, write_end = pipe()
    os.set_blocking(read_end, False)
    with contextlib.suppress(OSError):  # over the user's limit: the usual size does as well
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    return OutputPipe(read_end), write_end
