"""The children that a kernel has started, noted in a file that outlives it.

A process whose parent died by surprise looks like one that had left its parent on purpose: an orphan, perhaps in a
session of its own. A kernel's own children have never left. So all ways that Python has to start one (C code may have
others) note it here, in a microsecond, and the reaper knows which orphans end with the kernel.
"""

from __future__ import annotations

import _posixsubprocess
import functools
import mmap
import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from rlm_worker.processes import process_table, wire

_STARTERS: Final = (
    (os, ("fork", "forkpty", "posix_spawn", "posix_spawnp")),
    (_posixsubprocess, ("fork_exec",)),
    (subprocess, ("_fork_exec",)),
)


class Children:
    """The file's entries. Those of ended children make room when it is full; beyond it, children are not noted."""

    def __init__(self, descriptor: int) -> None:
        self._entries = mmap.mmap(descriptor, wire.CHILDREN_LIMIT * wire.CHILD.size)
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._kernel = os.getpid()
        self._count = 0
        self._lock = threading.Lock()

    def note(self, pid: int) -> None:
        """A child was started just now."""
        if os.getpid() != self._kernel:
            return  # this is a fork of the kernel, and the child is its own
        with self._lock:
            if self._count == wire.CHILDREN_LIMIT:
                self._forget_ended()
            if self._count < wire.CHILDREN_LIMIT:
                position, self._count = self._count * wire.CHILD.size, self._count + 1
                now = time.clock_gettime(time.CLOCK_BOOTTIME)
                wire.CHILD.pack_into(self._entries, position, pid, int(now * self._ticks))

    def _forget_ended(self) -> None:
        noted = wire.CHILD.iter_unpack(self._entries[:])
        rows = [(process_table.row(pid), pid, ticks) for pid, ticks in noted]
        left = [(pid, ticks) for row, pid, ticks in rows if row and row.parent == self._kernel and row.start <= ticks]
        self._entries[:] = b"".join(wire.CHILD.pack(*entry) for entry in left).ljust(len(self._entries), b"\0")
        self._count = len(left)


def note_children(descriptor: int) -> None:
    """From now on, in this process. The descriptor is needed no more."""
    children = Children(descriptor)
    for module, names in _STARTERS:
        for name in names:
            setattr(module, name, _noting(getattr(module, name), children))


def _noting(start: Callable[..., Any], children: Children) -> Callable[..., Any]:
    @functools.wraps(start)
    def start_and_note(*args: Any, **kwargs: Any) -> Any:
        started = start(*args, **kwargs)
        pid = started[0] if isinstance(started, tuple) else started
        if pid > 0:
            children.note(pid)
        return started

    return start_and_note
