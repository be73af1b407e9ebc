"""A PID namespace for the workspace, whose first process is the reaper. Runs in the reaper.

One for all commands rather than one for each: an agent starts a server with one command and ends it with another, by
its pid. What it gives over a subreaper: nothing in it can see or signal reaper, worker or harness, orphans cannot be
adopted by anybody outside, and if the reaper is killed, the kernel kills everything with it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWPID = 0x2000_0000
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_MS_SLAVE_RECURSIVE = 1 << 19 | 0x4000

_ENTERED = b"0"

_libc = ctypes.CDLL(None, use_errno=True)


def enter(leave_outside: Callable[[], None]) -> int:
    """Go on as the first process of a new namespace. Raises OSError, still outside, if that cannot be.

    Returns a descriptor; the process that called stays outside, calls `leave_outside` there, and exits once that
    descriptor is closed.
    """
    report, write = os.pipe2(os.O_CLOEXEC)
    middle = os.fork()
    if middle == 0:
        os.close(report)
        if _begin(write):
            return write
        os._exit(0)
    os.close(write)
    os.waitpid(middle, 0)
    answer = os.read(report, 16)
    if answer == _ENTERED:
        leave_outside()
        os.read(report, 1)  # until the other one has closed it
        os._exit(0)
    os.close(report)
    number = int(answer or 1)
    raise OSError(number, f"a PID namespace cannot be made: {os.strerror(number)} (it needs CAP_SYS_ADMIN)")


def _begin(write: int) -> bool:
    """Make the namespace; True in its first process. What went wrong is written to `write`."""
    try:
        _check(_libc.unshare(_CLONE_NEWPID | _CLONE_NEWNS))
        _check(_libc.mount(b"none", b"/", None, _MS_SLAVE_RECURSIVE, None))  # what is mounted outside still comes in
        if os.fork() > 0:
            return False
        _check(_libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV_NOEXEC, None))
    except OSError as error:
        os.write(write, b"%d" % (error.errno or 1))
        os._exit(0)
    os.write(write, _ENTERED)
    return True


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
