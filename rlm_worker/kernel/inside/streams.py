"""A kernel's descriptors 1 and 2: the Python streams on them, their repair before a cell, their flush after it."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys

_libc = ctypes.CDLL(None)
_c_stdout = ctypes.c_void_p.in_dll(_libc, "stdout")
_LINE_BUFFERED = 1  # C's _IOLBF


class OutputStream(io.TextIOWrapper):
    """sys.stdout and sys.stderr: every write reaches the pipe at once.

    So text keeps its place between the output of C code and of commands, and is not lost when the process dies.
    """

    def __init__(self, descriptor: int) -> None:
        buffered = open(descriptor, "wb", closefd=False)  # noqa: SIM115  lives as long as the process
        super().__init__(buffered, encoding="utf-8", errors="backslashreplace")

    def write(self, text: str, /) -> int:
        count = super().write(text)
        self.flush()
        return count


def open_streams() -> None:
    """Give `sys` fresh streams on 1 and 2, the ones `sys.__stdout__` names as well; C's stdout writes line by line."""
    _libc.setvbuf(_c_stdout, None, _LINE_BUFFERED, 0)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = OutputStream(descriptor)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def mend(output_fd: int) -> list[str]:
    """Point 1 and 2 at the output pipe again if a cell closed or redirected them, and reopen closed streams.

    Returns a notice for each descriptor that was restored.
    """
    notices = []
    wanted = os.fstat(output_fd)
    for descriptor in (1, 2):
        try:
            same = os.path.samestat(os.fstat(descriptor), wanted)
        except OSError:
            same = False
        if not same:
            _forget_unwritten(descriptor)
            os.dup2(output_fd, descriptor)
            notices.append(f"An earlier cell closed or redirected file descriptor {descriptor}: it was restored.")
    if not (_is_open("stdout") and _is_open("stderr")):
        open_streams()
    return notices


def flush() -> None:
    """Push what this process still buffers into the pipe: the cell ends behind it."""
    for name in ("stdout", "stderr"):
        with contextlib.suppress(BaseException):  # a cell may have put anything there, or nothing
            getattr(sys, name).flush()
    _libc.fflush(_c_stdout)


def _forget_unwritten(descriptor: int) -> None:
    """What could not be written to a closed descriptor is still buffered, and must not pass for the next cell's."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, descriptor)
    flush()
    if nowhere != descriptor:
        os.close(nowhere)


def _is_open(name: str) -> bool:
    try:
        return not getattr(sys, name).closed
    except BaseException:  # noqa: BLE001  a cell may have put anything there, or nothing
        return False
