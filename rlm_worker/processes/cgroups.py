"""Control groups: one directory for the worker, in it one leaf for each command. Runs in the reaper.

What is started is born in the group of the process that starts it. So the reaper moves itself into the next command's
leaf, ahead of time, as that may take the kernel several milliseconds; the command, and all that descends from it,
whatever session, parent or environment that makes up, is in the leaf from its first instruction, and the kernel
freezes and kills a leaf as a whole. The reaper steps out before that happens. A leaf that it is still in when its
command has ended and left nothing is the next command's.

The directory is made in the group that the reaper starts in, and locked for as long as the reaper lives, which tells
it from those that a killed one has left.
"""

# pathlib is slow to import, and the reaper should start soon:
# ruff: noqa: PTH102, PTH106, PTH112

from __future__ import annotations

import errno
import fcntl
import os
import select
from contextlib import suppress

_PREFIX = "rlm-worker-"

_FREEZE_WAIT = 0.2
"""Seconds for a leaf to come to a standstill; it takes microseconds unless a process sleeps uninterruptibly."""


class Leaf:
    """One command's control group. Made by a Directory."""

    def __init__(self, path: str, directory: Directory) -> None:
        os.mkdir(path)
        self._path = path
        self._directory = directory
        self._events = -1

    def add(self, pid: int) -> None:
        """Move a process here; what it has started before stays where it is. Raises OSError."""
        _write(f"{self._path}/cgroup.procs", b"%d" % pid)

    def pids(self) -> list[int]:
        """What is alive in it, but for ourselves; nothing once it is removed."""
        with suppress(FileNotFoundError), open(f"{self._path}/cgroup.procs", "rb", buffering=0) as file:
            return [pid for pid in map(int, file.readall().split()) if pid != os.getpid()]
        return []

    def freeze(self) -> None:
        """Bring all of it to a standstill, so that nothing forks."""
        self._directory.step_out(self)
        _write(f"{self._path}/cgroup.freeze", b"1")
        events = self.events()
        waiting = select.poll()
        waiting.register(events, select.POLLPRI)
        while b"frozen 1" not in os.pread(events, 256, 0) and waiting.poll(_FREEZE_WAIT * 1000):
            continue

    def thaw(self) -> None:
        _write(f"{self._path}/cgroup.freeze", b"0")

    def kill(self) -> None:
        """SIGKILL for all of it, at once and without exception."""
        self._directory.step_out(self)
        _write(f"{self._path}/cgroup.kill", b"1")

    def events(self) -> int:
        """A descriptor for poll(POLLPRI): something changed, for instance the leaf is empty now. `remove` closes it."""
        if self._events < 0:
            self._events = os.open(f"{self._path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        return self._events

    def populated(self) -> bool:
        """Whether anything lives in it, ourselves included. Also makes `events` wait for the next change."""
        return b"populated 1" in os.pread(self.events(), 256, 0)

    def remove(self) -> bool:
        """Remove the empty leaf, or keep it for the next command if we are in it; False if something lives in it."""
        if self._directory.stay_in(self):
            return True
        try:
            os.rmdir(self._path)
        except FileNotFoundError:
            pass
        except OSError:
            return False
        if self._events >= 0:
            os.close(self._events)
            self._events = -1
        return True


class Directory:
    """The worker's directory. Raises OSError that says what is missing."""

    def __init__(self) -> None:
        self._base = _own_group()
        _sweep(self._base)
        self._path = f"{self._base}/{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        self._made = 0
        self._next: Leaf | None = None
        self._around_us: Leaf | None = None
        os.mkdir(self._path)
        self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._try_out()
        except BaseException:
            self.close([])
            raise

    @property
    def prepared(self) -> bool:
        """Whether `enter_leaf` has nothing left to do."""
        return self._next is not None

    def leaf(self) -> Leaf:
        """A new leaf. Raises OSError."""
        self._made += 1
        return Leaf(f"{self._path}/{self._made}", self)

    def enter_leaf(self) -> Leaf:
        """Be in a fresh leaf, and so will be what is started next. `take_leaf` makes it that one's own.

        Raises OSError. Takes milliseconds if it was long ago that any process on this machine was moved.
        """
        if self._next is None:
            leaf = self.leaf()
            try:
                leaf.add(os.getpid())
            except OSError:
                leaf.remove()
                raise
            self._next = self._around_us = leaf
        return self._next

    def take_leaf(self) -> None:
        """Something was started in the leaf that we are in."""
        self._next = None

    def stay_in(self, leaf: Leaf) -> bool:
        """Have the next command started in this leaf, if we are in it and nothing else is: moving costs more.

        It was never frozen or killed, and nobody waits for its end: we would not be in it any more.
        """
        if self._around_us is not leaf or leaf.pids():
            return False
        self._next = leaf
        return True

    def step_out(self, leaf: Leaf) -> None:
        """Be in another leaf, if we are in this one."""
        if self._around_us is leaf:
            self._next = None
            self.enter_leaf()

    def close(self, leaves: list[Leaf]) -> None:
        """Remove the directory; what still lives in `leaves` runs on in the group that we have started in."""
        group = f"{self._base}/cgroup.procs"
        with suppress(OSError):
            _write(group, b"%d" % os.getpid())
        inhabited, self._around_us = self._around_us, None
        for leaf in [inhabited, *leaves] if inhabited is not None else leaves:
            with suppress(OSError):
                leaf.freeze()
                for pid in leaf.pids():
                    with suppress(ProcessLookupError):
                        _write(group, b"%d" % pid)
                leaf.thaw()
                leaf.remove()
        with suppress(OSError):
            os.rmdir(self._path)
        os.close(self._lock)

    def _try_out(self) -> None:
        leaf = self.leaf()
        try:
            leaf.freeze()
            leaf.thaw()
            leaf.kill()
            self.enter_leaf()
        except FileNotFoundError as error:
            raise OSError(error.errno, f"there is no {error.filename}, which needs Linux 5.14") from None
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise OSError(error.errno, f"processes cannot be moved to a group in {self._base}: {reason}") from None
        finally:
            leaf.remove()


def _own_group() -> str:
    """The directory of the group that this process is in, in version 2's hierarchy wherever that is mounted."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        paths = [line.rstrip("\n")[3:] for line in file if line.startswith("0::")]
    if not paths:
        raise OSError(errno.ENOENT, "this kernel has no control groups of version 2")
    mounts = []
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if fields[fields.index("-") + 1] == "cgroup2":
                mounts.append((fields[3], fields[4]))
    if not mounts:
        raise OSError(errno.ENOENT, "control groups of version 2 are not mounted")
    for root, mount in mounts:
        below = os.path.relpath(paths[0], root)
        group = mount if below == "." else f"{mount}/{below}"
        if not below.startswith("..") and os.path.isdir(group):
            if not os.access(group, os.W_OK) or not os.access(f"{group}/cgroup.procs", os.W_OK):
                raise OSError(
                    errno.EACCES, f"{group} is not writable: it needs to be mounted for writing and delegated"
                )
            return group
    raise OSError(errno.ENOENT, f"our own control group {paths[0]} is not below any mount of version 2")


def _sweep(base: str) -> None:
    """Remove the empty directories of reapers that were killed."""
    with os.scandir(base) as entries:
        stale = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in stale:
        with suppress(OSError):  # locked, so in use; or not empty; or removed by somebody else meanwhile
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with os.scandir(path) as entries:
                    leaves = [entry.path for entry in entries if entry.is_dir()]
                for leaf in leaves:
                    with suppress(OSError):
                        os.rmdir(leaf)
                os.rmdir(path)
            finally:
                os.close(directory)


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
