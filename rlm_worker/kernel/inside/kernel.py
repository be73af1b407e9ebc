"""The start and the end of one kernel process, right after the host forked it.

Descriptors, signals, directory, environment and streams are put in place here, then the main thread runs cells
(`execution`) while one Trio thread owns the wire (`wire`).
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import gc
import io
import os
import random
import resource
import signal
import threading
from typing import Final, NoReturn

from rlm_worker.environment import let_be_read
from rlm_worker.kernel.inside import figures, streams, wire
from rlm_worker.kernel.inside.api.calls import Calls
from rlm_worker.kernel.inside.api.inheritance import let_threads_inherit
from rlm_worker.kernel.inside.children import note_children
from rlm_worker.kernel.inside.execution import Executor
from rlm_worker.kernel.inside.host import Birth
from rlm_worker.kernel.inside.shell import KernelShell

HIGH_DESCRIPTORS: Final = (300, 900)  # below the usual limit of 1024, above what a careless loop closes


def run(shell: KernelShell, calls: Calls, birth: Birth) -> NoReturn:
    """Be a kernel until the worker ends the session. `calls` are those that the shell's `rlm` makes."""
    os.setsid()
    let_be_read(True)  # a cell may debug itself
    note_children(birth.children)  # before the descriptor goes, with all the others
    wire_fd, output_fd = _place_descriptors(birth.wire, birth.output)

    def leave_wire() -> None:
        _close_quietly(wire_fd)  # a forked child must not hold the wire open
        calls.detach("this process was forked from the kernel: rlm works in the kernel itself only")

    os.register_at_fork(after_in_child=leave_wire)
    streams.open_streams()
    faulthandler.enable(file=2, all_threads=False)
    figures.show_inline(shell)

    executor = Executor(shell, output_fd)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # inherited: signals are for the main thread
    thread = threading.Thread(target=wire.serve, args=(wire_fd, executor, calls), name="kernel wire", daemon=True)
    thread.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    let_threads_inherit()
    executor.run()
    _leave()


def _leave() -> NoReturn:
    """End as an interpreter does for its program, without taking itself apart, which would cost a tenth of a second.

    Threads are waited for, exit functions run (IPython's, the last, forgets the user's variables), files are flushed.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for candidate in gc.get_objects():  # those made since the fork: the rest is frozen
        if issubclass(type(candidate), io.IOBase):
            with contextlib.suppress(Exception):
                candidate.flush()
    os._exit(0)


def _place_descriptors(received_wire: int, received_output: int) -> tuple[int, int]:
    """Leave 0 (empty), 1 and 2 (the output pipe), and high, close-on-exec, the wire and a spare of the pipe."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    low, high = HIGH_DESCRIPTORS if limit > 1000 else (limit // 2, limit - 8)
    start = random.SystemRandom().randrange(low, high)
    wire_fd = fcntl.fcntl(received_wire, fcntl.F_DUPFD_CLOEXEC, start)
    output_fd = fcntl.fcntl(received_output, fcntl.F_DUPFD_CLOEXEC, start)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(received_output, 1)
    os.dup2(received_output, 2)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  one name is the listing itself, closed by now
        if int(name) > 2 and int(name) not in (wire_fd, output_fd):
            _close_quietly(int(name))
    return wire_fd, output_fd


def _close_quietly(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
