"""The kernel's end of its session with the worker: a Trio thread, so that cells may do as they like on theirs."""

from __future__ import annotations

import os
import signal
import socket

import trio

from rlm_wire.broker.services import Service
from rlm_wire.methods.kernels import (
    CellOutcome,
    EnterWorkspace,
    InspectNamespace,
    InterruptCell,
    KernelVariables,
    RunCell,
)
from rlm_worker.kernel.inside import place
from rlm_worker.kernel.inside.api.calls import CLOSING, Calls
from rlm_worker.kernel.inside.execution import Executor
from rlm_worker.kernel.link import open_link


def serve(wire_fd: int, executor: Executor, calls: Calls) -> None:
    """Serve the worker until it ends the session; then end the kernel. Runs in a thread of its own."""
    try:
        trio.run(_serve, wire_fd, executor, calls)
    finally:
        if executor.busy:  # closing waits for no cell
            os.kill(os.getpid(), signal.SIGKILL)
        executor.stop()


async def _serve(wire_fd: int, executor: Executor, calls: Calls) -> None:
    service = Service()
    token = trio.lowlevel.current_trio_token()

    @service.handle(EnterWorkspace)
    def enter_workspace(request: EnterWorkspace) -> None:
        if notice := place.enter(request.cwd, request.env):
            executor.notices.append(notice)

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
