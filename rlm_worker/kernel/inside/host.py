"""The kernel host: a process that runs `main`, with its control socket on descriptor 3.

A single-threaded process that keeps a warm IPython shell and forks one kernel per request, so that a new kernel costs
milliseconds and shares its memory. It runs no user code, reaps its kernels and says how each ended. It leaves when the
worker does (end of the control socket); kernels see the end of their own sockets.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import warnings
from typing import NamedTuple

from rlm_worker.environment import let_be_read
from rlm_worker.kernel import control
from rlm_worker.kernel.inside import HOST_CONTROL_FD

_FORK = control.encode(control.Fork())  # all that a worker ever says


class Birth(NamedTuple):
    """What a freshly forked kernel got: its own descriptors."""

    wire: int
    output: int
    children: int


class Host:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)

    def serve(self) -> Birth | None:
        """Fork kernels until the worker has gone (None). In each kernel, returns what it was born with."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_sender.fileno(), warn_on_full_buffer=False)
        while True:
            readable, _, _ = select.select([self._channel, self._wake_receiver], [], [])
            if self._wake_receiver in readable:
                self._wake_receiver.recv(4096)
                self._reap()
            if self._channel in readable:
                descriptors = self._receive()
                if descriptors is None:
                    return None
                if birth := self._fork(Birth(*descriptors)):
                    return birth

    def send(self, message: control.FromHost, descriptors: list[int] | None = None) -> None:
        data = control.encode(message)
        if descriptors:
            socket.send_fds(self._channel, [data], descriptors)
        else:
            self._channel.sendall(data)

    def _receive(self) -> list[int] | None:
        """The descriptors of the next `Fork`; None once the worker has gone."""
        data, descriptors, _, _ = socket.recv_fds(self._channel, len(_FORK), 3)
        if data and len(data) < len(_FORK):
            data += self._channel.recv(len(_FORK) - len(data), socket.MSG_WAITALL)
        return descriptors if data == _FORK else None

    def _fork(self, birth: Birth) -> Birth | None:
        try:
            pid = os.fork()
        except OSError as error:
            self.send(control.Refused(f"fork failed: {error.strerror}"))
            pid = -1
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return birth
        for descriptor in birth:
            os.close(descriptor)
        if pid > 0:  # not reaped yet, so its number cannot be another's
            pidfd = os.pidfd_open(pid)
            self.send(control.Forked(pid), [pidfd])
            os.close(pidfd)
        return None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.send(control.Exited(pid, os.waitstatus_to_exitcode(status)))


def main() -> None:
    warnings.filterwarnings("ignore", message="To exit: use 'exit'")  # IPython's advice after SystemExit
    sys.argv = [""]
    channel = socket.socket(fileno=HOST_CONTROL_FD)
    channel.set_inheritable(False)
    let_be_read(False)  # every agent's kernel comes from here: none may write to it
    host = Host(channel)
    try:
        from rlm_worker.kernel.inside import kernel  # late: a missing IPython is an answer, not a crash
        from rlm_worker.kernel.inside.rehearsal import warm_shell
    except ImportError as error:
        host.send(control.Unusable(f"kernels need the worker extra, pip install 'rlm-wire[worker]': {error}"))
        return
    shell, calls = warm_shell()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # what is there now is shared with every kernel: collections must not write to it
    try:
        host.send(control.Ready())
        birth = host.serve()
    except ConnectionError:  # the worker has gone
        return
    if birth is not None:
        kernel.run(shell, calls, birth)
