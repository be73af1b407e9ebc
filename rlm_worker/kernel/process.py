"""One kernel process, seen from the worker: started through the host, given cells, interrupted, ended.

What a death means for an agent is decided in `lane`; here it is only noticed, at once, by the kernel's pidfd.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Mapping
from typing import Final

import trio

from rlm_wire.broker.peer import Peer
from rlm_wire.broker.services import Service
from rlm_wire.errors import CallError, SessionLost
from rlm_wire.methods.kernels import (
    CellError,
    CellOutcome,
    EnterWorkspace,
    InspectNamespace,
    InterruptCell,
    KernelVariables,
    LeaveWorkspace,
    RunCell,
)
from rlm_wire.methods.skills import Skills
from rlm_worker.kernel.hosts import Forked, Host
from rlm_worker.kernel.link import open_link
from rlm_worker.kernel.output import OutputPipe, open_output
from rlm_worker.processes import Process, Reaper, memory_file
from rlm_worker.processes.descriptors import socket_pair
from rlm_worker.processes.wire import CHILD, CHILDREN_LIMIT

KILL_PATIENCE: Final = 2.0
"""Seconds for the reaper to kill a kernel and what is attached to it, before it is done here."""

LEAVE_GRACE: Final = 2.0
"""Seconds that an idle kernel has for its exit handlers and open files when it is closed."""

INSPECTION_PATIENCE: Final = 5.0
"""Seconds to wait for a busy kernel to say what it holds."""


class RunningCell:
    """A cell in a kernel: settled when it is over; then `outcome` is None if the kernel died instead."""

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.outcome: CellOutcome | None = None


class _Inspection:
    """A question to the kernel on its way."""

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.variables: KernelVariables | None = None


class KernelProcess:
    """A kernel. Made by `start_kernel`; to be run, for as long as it lives, or discarded."""

    def __init__(self, forked: Forked, process: Process, wire: socket.socket, output: OutputPipe) -> None:
        self.pid = forked.pid
        self.process = process
        self.output = output
        self.exit_status: int | None = None
        """Once dead: its exit code, negative for a signal; None if its host died first, or it is not dead."""
        self.dead = trio.Event()
        self._forked = forked
        self._wire = wire
        self._cell: RunningCell | None = None
        self._number = 0
        self._inspection: _Inspection | None = None
        self._leaving = False
        self._peer: Peer
        self._nursery: trio.Nursery

    async def run(self, service: Service, task_status: trio.TaskStatus[None]) -> None:
        """Serve this kernel, whose cells may call `service`, until it is dead, and what was attached to it is stopped.

        Cancellation: kills it; waits, shielded and bounded by the reaper's own limits, until that is done.
        """
        try:
            async with (
                open_link(self._wire, service, worker=True) as self._peer,
                trio.open_nursery() as self._nursery,
            ):
                self._nursery.start_soon(self.output.read)
                self._nursery.start_soon(self._kill_when_silent)
                task_status.started()
                try:
                    await trio.lowlevel.wait_readable(self._forked.pidfd)
                finally:
                    self.kill()
                    with trio.move_on_after(KILL_PATIENCE, shield=True):
                        # Not before: it would leave by itself, and orphan what is attached to it.
                        await trio.lowlevel.wait_readable(self._forked.pidfd)
                    self._peer.lose(SessionLost("the kernel is dead"))
                    self._nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._bury()

    def has_ended(self) -> bool:
        """Whether the process has ended, at this very moment; `dead` is set once all it left behind is dealt with."""
        return self.dead.is_set() or bool(select.select([self._forked.pidfd], [], [], 0)[0])

    async def enter(self, cwd: str, env: Mapping[str, str], skills: Skills | None, guard_git: bool) -> None:
        """Make the fresh kernel work in `cwd` with `env` and nothing else; the rest as `EnterWorkspace` says.

        Raises CallError if it died meanwhile.
        """
        try:
            await self._peer.call(EnterWorkspace(cwd, {**env, **self.process.marker}, skills, guard_git))
        except SessionLost:
            raise CallError("unavailable", "The kernel died before its first cell.", retryable=True) from None

    def start_cell(self, code: str, scope: str, ledger_size: int | None) -> RunningCell:
        """Give a cell to the idle kernel, which has not ended."""
        self._number += 1
        cell = self._cell = RunningCell()
        self._nursery.start_soon(self._call, RunCell(code, self._number, scope, ledger_size), cell)
        return cell

    async def inspect(self) -> KernelVariables:
        """What the kernel holds, also while it runs a cell. CallError("unavailable") if it does not answer in time.

        A cell that holds the interpreter keeps it from answering; whoever asks meanwhile waits for the same answer.
        """
        inspection = self._inspection
        if inspection is None:
            inspection = self._inspection = _Inspection()
            self._nursery.start_soon(self._inspect, inspection)
        with trio.move_on_after(INSPECTION_PATIENCE):
            await inspection.settled.wait()
        if inspection.variables is None:
            raise CallError("unavailable", "The kernel does not answer: its cell is busy in C code.", retryable=True)
        return inspection.variables

    async def leave(self) -> None:
        """End the idle kernel in the ordinary way, so that exit handlers run and files are flushed; then by force.

        Cancellation: kills it at once.
        """
        self._leaving = True
        try:
            with trio.move_on_after(LEAVE_GRACE):
                with contextlib.suppress(CallError, SessionLost):
                    await self.process.note_tree()
                    await self._peer.call(LeaveWorkspace())
                await self._peer.say_goodbye()
                await self.dead.wait()
        finally:
            self.kill()
            with trio.CancelScope(shield=True):
                await self.dead.wait()

    def discard(self) -> None:
        """End a kernel that nobody has run."""
        self.process.abandon()
        os.close(self._forked.pidfd)
        self._wire.close()
        self.output.close()

    def interrupt(self) -> None:
        """KeyboardInterrupt for the cell that was started last, also if the kernel has not begun it yet."""
        self._signal(signal.SIGINT)  # at once, also where C code holds the interpreter but looks for signals
        self.confirm_interrupt()

    def confirm_interrupt(self) -> None:
        """Have the kernel see to it that the interrupt has reached the cell. It strikes no cell twice."""
        if not self._peer.closed:  # else it is dead, or about to be
            self._nursery.start_soon(self._interrupt, self._number)

    def kill(self) -> None:
        """With all that is attached to it at this moment."""
        if not self.dead.is_set() and not self.process.kill():
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if not self.dead.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._forked.pidfd, number)

    async def _call(self, request: RunCell, cell: RunningCell) -> None:
        try:
            cell.outcome = await self._peer.call(request)
        except SessionLost:
            return  # it is dying: settled when it is dead, and all it left behind has been taken
        except CallError as error:
            cell.outcome = CellOutcome("error", error=CellError("KernelError", error.message, error.message))
        cell.settled.set()

    async def _interrupt(self, number: int) -> None:
        with contextlib.suppress(SessionLost):
            await self._peer.call(InterruptCell(number))

    async def _inspect(self, inspection: _Inspection) -> None:
        with contextlib.suppress(SessionLost):
            inspection.variables = await self._peer.call(InspectNamespace())
        inspection.settled.set()
        self._inspection = None

    async def _kill_when_silent(self) -> None:
        """A kernel that closed its wire, or became another program, is of no use any more."""
        await self._peer.wait_closed()
        if not self._leaving:
            self.kill()

    async def _bury(self) -> None:
        self._signal(signal.SIGKILL)  # harmless, unless the reaper was killed before it could do it
        await trio.lowlevel.wait_readable(self._forked.pidfd)
        self.exit_status = await self._forked.exit_status()
        with contextlib.suppress(CallError):  # the reaper is lost: whoever needs it is told so
            await self.process.kill_tree(grace=0)
        self.dead.set()
        os.close(self._forked.pidfd)
        self.output.close()
        self.process.release()  # from here on, the reaper takes what is still written to the pipe
        if self._cell is not None:
            self._cell.settled.set()


async def start_kernel(host: Host, reaper: Reaper) -> KernelProcess:
    """A fresh kernel, not yet run. Raises CallError, and is cancelled, as `Host.fork` and `Reaper.adopt`."""
    ours, theirs = socket_pair()
    with contextlib.ExitStack() as undo, theirs:
        undo.callback(ours.close)  # which ends the kernel, if there is one
        with memory_file("children", b"") as children:
            os.ftruncate(children, CHILDREN_LIMIT * CHILD.size)
            output, write_end = open_output()
            undo.callback(output.close)
            try:
                forked = await host.fork(theirs.fileno(), write_end, children)
            finally:
                os.close(write_end)
            undo.callback(os.close, forked.pidfd)
            process = await reaper.adopt(forked.pid, forked.pidfd, output.descriptor, children)
        undo.pop_all()
    return KernelProcess(forked, process, ours, output)
