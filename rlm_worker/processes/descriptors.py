"""Descriptors made for processes: files in memory and output pipes, each closed by a scope."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_file(name: str, content: bytes) -> Iterator[int]:
    """A file that exists in memory only and holds `content`, as a close-on-exec descriptor. Needs no disk."""
    descriptor = os.memfd_create(name)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield descriptor
    finally:
        os.close(descriptor)


class OutputPipe:
    """A pipe for the output of a process. `read` is non-blocking; writers block as on any pipe."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe2(os.O_CLOEXEC)
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
    pipe = OutputPipe()
    try:
        yield pipe
    finally:
        pipe.close()
