"""What a SPAWN packet asks for, and starting it with `posix_spawn`. Runs in the reaper."""

from __future__ import annotations

import fcntl
import os
import signal

from rlm_worker.processes import wire

CWD = b"<cwd>"
"""The file name of an OSError that is about the working directory."""

_ALL_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}

_FileAction = tuple[int, int, int] | tuple[int, int, str, int, int]


class Order:
    """What to start, from the body and the descriptors of a SPAWN packet.

    The descriptors must be open until it was started; `output` and `script` are those that stay with us, -1 if there
    are none.
    """

    def __init__(self, body: bytes, descriptors: list[int]) -> None:
        body = body or _read_all(descriptors[0])
        self.targets, flags, self.cwd, self.argv, self.env = wire.read_spawn_body(body)
        self.sources = descriptors[1:] if flags & wire.BODY_APART else descriptors[:]
        self.script = self.sources.pop() if flags & wire.SCRIPT else -1
        self.output = self.sources.pop() if flags & wire.OUTPUT else -1
        self.terminal = bool(flags & wire.TERMINAL)
        if self.script >= 0:
            self.argv.append(b"/proc/%d/fd/%d" % (os.getpid(), self.script))


def spawn(order: Order) -> int:
    """Start it in a session of its own and return its pid.

    Runs none of our code between fork and exec. Raises OSError, with `CWD` as file name if the directory cannot be
    entered.
    """
    # Copies above every target, or an earlier dup2 of the child could overwrite a later one's source.
    limit = max(order.targets, default=2) + 1
    sources = [fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, limit) for source in order.sources]
    try:
        empty = {0, 1, 2} - set(order.targets)
        actions: list[_FileAction] = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in empty]
        for source, target in zip(sources, order.targets, strict=True):
            if target == 0 and order.terminal:  # a terminal that a session leader opens becomes its controlling one
                actions.append((os.POSIX_SPAWN_OPEN, 0, f"/proc/self/fd/{source}", os.O_RDWR, 0))
            else:
                actions.append((os.POSIX_SPAWN_DUP2, source, target))
        _enter(order.cwd)  # posix_spawn knows no directory; with a single thread, our own is nobody else's
        return os.posix_spawn(
            order.argv[0],
            order.argv,
            order.env,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_ALL_SIGNALS,
        )
    finally:
        os.chdir("/")  # or the directory could not be unmounted
        for descriptor in sources:
            os.close(descriptor)


def _enter(directory: bytes) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), CWD) from None


def _read_all(descriptor: int) -> bytes:
    """A body that travelled as a file, as it was too large for a packet."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
