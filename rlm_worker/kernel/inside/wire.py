"""The kernel's end of its session with the worker: a Trio thread, so that cells may do as they like on theirs."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Final

import trio

from rlm_wire.broker.services import Service
from rlm_wire.methods.kernels import (
    CellOutcome,
    EnterWorkspace,
    InspectNamespace,
    InterruptCell,
    KernelVariables,
    LeaveWorkspace,
    RunCell,
)
from rlm_worker.kernel.inside import place
from rlm_worker.kernel.inside.api.calls import CLOSING, Calls
from rlm_worker.kernel.inside.api.skills import skill_modules
from rlm_worker.kernel.inside.execution import Executor
from rlm_worker.kernel.link import open_link

LOST_PATIENCE: Final = 2.0
"""Seconds after the loss of the worker before the kernel leaves by itself. The reaper ends it sooner, together with
what is attached to it, which it would orphan."""


def serve(wire_fd: int, executor: Executor, calls: Calls) -> None:
    """Serve the worker until it ends the session; then end the kernel. Runs in a thread of its own."""
    leaving = threading.Event()
    try:
        trio.run(_serve, wire_fd, executor, calls, leaving)
    finally:
        leaving.wait(LOST_PATIENCE)
        if executor.busy:  # closing waits for no cell
            os.kill(os.getpid(), signal.SIGKILL)
        executor.stop()


async def _serve(wire_fd: int, executor: Executor, calls: Calls, leaving: threading.Event) -> None:
    service = Service()
    token = trio.lowlevel.current_trio_token()

    @service.handle(EnterWorkspace)
    def enter_workspace(request: EnterWorkspace) -> None:
        if notice := place.enter(request.cwd, request.env):
            executor.notices.append(notice)
        executor.guard_git = request.guard_git
        if request.skills is not None:
            executor.preload(skill_modules(request.skills, calls))

    @service.handle(LeaveWorkspace)
    def leave_workspace(request: LeaveWorkspace) -> None:
        leaving.set()

    @service.handle(InspectNamespace)
    def inspect(request: InspectNamespace) -> KernelVariables:
        return executor.inspect()

    @service.handle(InterruptCell)
    def interrupt(request: InterruptCell) -> None:
        executor.interrupt(request.number)

    @service.handle(RunCell)
    async def run_cell(request: RunCell) -> CellOutcome:
        finished = trio.Event()
        outcome: CellOutcome | None = None

        def finish(result: CellOutcome) -> None:
            nonlocal outcome
            outcome = result
            token.run_sync_soon(finished.set)

        calls.ledger_size = request.ledger_size
        executor.submit(request.code, request.number, request.scope, finish)
        await finished.wait()
        assert outcome is not None
        return outcome

    async with open_link(socket.socket(fileno=wire_fd), service, worker=False) as peer, trio.open_nursery() as nursery:
        calls.attach(peer, nursery)
        await peer.wait_closed()
        calls.detach(CLOSING)
        nursery.cancel_scope.cancel()
