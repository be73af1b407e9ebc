"""Descriptors made for processes: files in memory, pipes and sockets.

Making one raises CallError("resource_exhausted") if the system has none left: that call fails, and later ones may not.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from rlm_wire.errors import CallError


@contextmanager
def memory_file(name: str, content: bytes) -> Iterator[int]:
    """A file that exists in memory only and holds `content`, as a close-on-exec descriptor. Needs no disk."""
    with _enough_of_them():
        descriptor = os.memfd_create(name)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield descriptor
    finally:
        os.close(descriptor)


def pipe() -> tuple[int, int]:
    """Both ends of a new pipe, close-on-exec."""
    with _enough_of_them():
        return os.pipe2(os.O_CLOEXEC)


def duplicate(descriptor: int) -> int:
    """Another descriptor of the same file, close-on-exec."""
    with _enough_of_them():
        return os.dup(descriptor)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair of Unix stream sockets."""
    with _enough_of_them():
        return socket.socketpair()


@contextmanager
def _enough_of_them() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"the worker cannot open more descriptors: {error.strerror}"
        raise CallError("resource_exhausted", message, retryable=True) from None


class OutputPipe:
    """A pipe for the output of a process. `read` is non-blocking; writers block as on any pipe."""

    def __init__(self, ends: tuple[int, int] | None = None) -> None:
        self.read, self.write = ends or pipe()
        os.set_blocking(self.read, False)

    def close_write(self) -> None:
        """Once the process has been started: its copies are then the only ones, and their end is end of file."""
        if self.write >= 0:
            os.close(self.write)
            self.write = -1

    def close(self) -> None:
        self.close_write()
        os.close(self.read)


@contextmanager
def output_pipe() -> Iterator[OutputPipe]:
    """A pipe that is closed with the block."""
    made = OutputPipe()
    try:
        yield made
    finally:
        made.close()


class Terminal(OutputPipe):
    """A pseudo-terminal in the place of a pipe: `read` is our end, for both directions, and `write` the process's."""

    def __init__(self) -> None:
        with _enough_of_them():
            super().__init__(os.openpty())
        self.resize(24, 80)

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.read, termios.TIOCSWINSZ, struct.pack("4H", rows, cols, 0, 0))


@contextmanager
def open_terminal() -> Iterator[Terminal]:
    """A terminal that is closed with the block."""
    terminal = Terminal()
    try:
        yield terminal
    finally:
        terminal.close()
