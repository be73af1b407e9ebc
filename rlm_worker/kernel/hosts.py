"""The kernel host process, seen from the worker: starting it, asking it for kernels, hearing how they ended.

Kernels outlive their host. When there is one, and when the next, is decided in `supply`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

from rlm_wire.errors import CallError
from rlm_worker.kernel import control
from rlm_worker.kernel.inside import HOST_CONTROL_FD
from rlm_worker.processes import Process, Reaper
from rlm_worker.processes.descriptors import socket_pair

logger = logging.getLogger(__name__)

READ_SIZE: Final = 64 << 10
DESCRIPTORS_LIMIT: Final = 16  # pidfds in one read of the control socket

FORK_PATIENCE: Final = 10.0
"""Seconds for a host, which forks in milliseconds, to answer. One that was stopped is then killed, for another."""

STATUS_PATIENCE: Final = 2.0
"""Seconds for a host to say how a kernel that is dead has ended."""

_PACKAGE_ROOT = str(Path(__file__).parents[2])
_RUN: Final = (  # the worker's own code, also where another version of it is installed
    f"import sys; {_PACKAGE_ROOT!r} in sys.path or sys.path.insert(0, {_PACKAGE_ROOT!r})"
    "; from rlm_worker.kernel.inside.host import main; main()"
)


class Forked:
    """A fresh kernel process, by pid and by the pidfd (now the caller's) that tells it from every other."""

    def __init__(self, pid: int, pidfd: int, host: Host) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self._host = host

    async def exit_status(self) -> int | None:
        """How the process ended: exit code, negative for a signal; None if its host died or was stopped before it.

        To be awaited once the pidfd is readable, which makes it prompt. Bounded by STATUS_PATIENCE.
        """
        return await self._host.exit_status(self.pid)


class Host:
    """One host process and the conversation with it."""

    def __init__(self, process: Process, channel: trio.socket.SocketType) -> None:
        self.process = process
        self.ready = trio.Event()
        self.gone = trio.Event()
        self.unusable: str | None = None
        self._channel = channel
        self._sending = trio.Lock()
        self._answers: collections.deque[_Answer] = collections.deque()
        self._statuses: dict[int, int] = {}
        self._heard = trio.Condition()

    async def fork(self, wire: int, output: int, children: int) -> Forked:
        """Start a kernel on its end of a socketpair and of a pipe, and a file; the descriptors stay the caller's.

        Raises CallError: "resource_exhausted" if it cannot fork, or there is no descriptor left for the kernel's pidfd;
        "unavailable" if it is or goes dead, or does not answer within FORK_PATIENCE, for which it is killed.
        Cancellation: a kernel that was already asked for ends when it sees that its wire is closed.
        """
        answer = _Answer()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", wire, output, children))]
        with trio.move_on_after(FORK_PATIENCE) as patience:
            async with self._sending:
                self._answers.append(answer)  # before it is sent: the answer may be here before this task runs again
                try:
                    await self._channel.sendmsg([control.encode(control.Fork())], rights)
                except OSError:
                    self._lost()
                except trio.Cancelled:
                    self._answers.remove(answer)
                    raise
            try:
                await answer.given.wait()
            except trio.Cancelled:
                answer.abandon()  # the kernel, if it comes, sees the end of its wire and leaves
                raise
        if patience.cancelled_caught:
            self._give_up()
            raise _host_lost()
        return Forked(*answer.take(), self)

    async def exit_status(self, pid: int) -> int | None:
        with trio.move_on_after(STATUS_PATIENCE):
            async with self._heard:
                while pid not in self._statuses and not self.gone.is_set():
                    await self._heard.wait()
        return self._statuses.pop(pid, None)

    async def listen(self) -> None:
        """Take in what the host says until it is gone."""
        received = bytearray()
        descriptors: collections.deque[int | None] = collections.deque()
        try:
            while True:
                space = socket.CMSG_SPACE(4 * DESCRIPTORS_LIMIT)
                data, ancillary, flags, _ = await self._channel.recvmsg(READ_SIZE, space)
                for _, _, rights in ancillary:
                    descriptors.extend(memoryview(rights).cast("i"))
                if flags & socket.MSG_CTRUNC:  # one read gives the pidfd of one message: we had none free for it
                    descriptors.append(None)
                if not data:
                    break
                received += data
                for message in _complete(received):
                    await self._take(message, descriptors)
        except OSError:
            pass
        except Exception:  # a host that does not keep to its part costs itself, and never the worker
            logger.exception("the kernel host said what it may not")
        finally:
            for descriptor in descriptors:
                if descriptor is not None:
                    os.close(descriptor)
            self._lost()
            with trio.CancelScope(shield=True):
                async with self._heard:
                    self._heard.notify_all()

    async def _take(self, message: control.FromHost, descriptors: collections.deque[int | None]) -> None:
        match message:
            case control.Ready():
                self.ready.set()
            case control.Unusable(reason):
                self.unusable = reason
            case control.Forked(pid):
                self._answers.popleft().give(pid, descriptors.popleft())
            case control.Refused(reason):
                self._answers.popleft().fail(CallError("resource_exhausted", f"No kernel: {reason}", retryable=True))
            case control.Exited(pid, status):
                async with self._heard:
                    self._statuses[pid] = status
                    self._heard.notify_all()

    def _give_up(self) -> None:
        self.process.signal_group(signal.SIGKILL)  # which also ends what is stopped
        self._lost()

    def _lost(self) -> None:
        self.gone.set()
        self.ready.set()
        while self._answers:
            self._answers.popleft().fail(_host_lost())


class _Answer:
    """What a `Fork` will be answered; the one who asked may have left."""

    def __init__(self) -> None:
        self.given = trio.Event()
        self._kernel: tuple[int, int] | None = None
        self._error: CallError | None = None
        self._abandoned = False

    def give(self, pid: int, pidfd: int | None) -> None:
        if pidfd is None:
            message = "No kernel: the worker cannot open more descriptors"
            self.fail(CallError("resource_exhausted", message, retryable=True))
        elif self._abandoned:
            os.close(pidfd)
        else:
            self._kernel = pid, pidfd
            self.given.set()

    def fail(self, error: CallError) -> None:
        self._error = error
        self.given.set()

    def abandon(self) -> None:
        self._abandoned = True
        if self._kernel is not None:
            os.close(self._kernel[1])

    def take(self) -> tuple[int, int]:
        if self._kernel is None:
            raise self._error or AssertionError
        return self._kernel


def _complete(received: bytearray) -> list[control.FromHost]:
    """Take every complete message out of `received`."""
    messages = []
    while len(received) >= control.LENGTH_BYTES:
        end = control.LENGTH_BYTES + int.from_bytes(received[: control.LENGTH_BYTES], "big")
        if len(received) < end:
            break
        messages.append(control.host_decoder.decode(received[control.LENGTH_BYTES : end]))
        del received[:end]
    return messages


def _host_lost() -> CallError:
    return CallError("unavailable", "The kernel host died; run the cell again.", retryable=True)


async def start_host(reaper: Reaper, env: Mapping[str, str], nursery: trio.Nursery) -> Host:
    """Start a host, to be looked after in `nursery`; it is of use once `ready` is set. CallError as `Reaper.spawn`."""
    ours, theirs = socket_pair()
    try:
        # -P: what lies in the workspace must not stand in for a module that the host imports.
        process = await reaper.spawn(
            [sys.executable, "-P", "-X", "utf8", "-c", _RUN],
            cwd="/",
            env=env,
            fds={HOST_CONTROL_FD: theirs.fileno()},
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    host = Host(process, trio.socket.from_stdlib_socket(ours))
    nursery.start_soon(_keep, host, ours)
    return host


async def _keep(host: Host, channel: socket.socket) -> None:
    try:
        with channel:
            await host.listen()
    finally:
        with trio.CancelScope(shield=True), contextlib.suppress(CallError):  # without a reaper, nothing is left
            await host.process.kill_tree(grace=0)
        host.process.release()
