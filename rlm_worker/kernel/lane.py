"""One agent's cells: in order, each in the agent's kernel, and what happens when that kernel is stuck or dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.kernels import KernelVariables
from rlm_worker.kernel.budget import Budget
from rlm_worker.kernel.cells import INTERRUPT_GRACE, LOST, Cell, describe_exit
from rlm_worker.kernel.process import KernelProcess, RunningCell
from rlm_worker.processes import open_capture

RECOVERIES: Final = 3
"""Fresh kernels in a row that an agent gets without completing a cell in between."""


class Lane:
    """The cells of one agent. `start` gives a fresh kernel that is looked after elsewhere."""

    def __init__(self, start: Callable[[], Awaitable[KernelProcess]]) -> None:
        self._start = start
        self._turn = trio.Lock()  # fair: cells run in order of arrival
        self._kernel: KernelProcess | None = None
        self._deaths = 0  # since the last cell that a kernel survived
        self._closed = False
        self._running = False

    async def run(self, cell: Cell) -> None:
        """Run `cell` when its turn comes. Cancellation: see `Cell.run`."""
        async with self._turn:
            kernel = await self._ready_kernel(cell)
            if kernel is not None:
                await self._run_in(kernel, cell)

    async def close(self) -> None:
        """End the kernel: an idle one in the ordinary way, a busy one at once. Cells that wait are not run.

        Cancellation: the kernel is killed, not left running.
        """
        self._closed = True
        kernel = self._kernel
        if kernel is None:
            return
        if self._turn.locked():
            kernel.kill()
            with trio.CancelScope(shield=True):
                await kernel.dead.wait()
        else:
            await kernel.leave()

    async def inspect(self) -> KernelVariables:
        """What the kernel holds; nothing if there is none. Raises CallError as `KernelProcess.inspect`."""
        kernel = self._kernel
        if kernel is None or kernel.has_ended():
            return KernelVariables()
        return await kernel.inspect()

    def interrupt(self) -> bool:
        """Interrupt the cell that runs; False if there is none."""
        if self._kernel is None or not self._running:
            return False
        self._kernel.interrupt()
        return True

    async def _ready_kernel(self, cell: Cell) -> KernelProcess | None:
        """The agent's kernel, started if need be; None if the cell was refused."""
        if self._closed:
            cell.refuse("The agent was closed before the cell started.")
            return None
        if self._kernel is not None and self._kernel.has_ended():
            await self._kernel.dead.wait()
            how = describe_exit(self._kernel.exit_status)
            self._kernel = None
            self._deaths += 1
            cell.refuse(f"The kernel process had died since the last cell: {how}. {LOST}")
            return None
        if self._kernel is None:
            if self._deaths > RECOVERIES:
                cell.refuse(
                    f"Not run: the kernel died {self._deaths} times without completing a cell in between, so this"
                    " agent gets no more kernels. Its other tools still work."
                )
                return None
            try:
                self._kernel = await self._start()
            except CallError as error:
                cell.refuse(f"No kernel could be started: {error.message}")
                return None
            if self._closed:  # meanwhile
                await self._kernel.leave()
                return await self._ready_kernel(cell)
        return self._kernel

    async def _run_in(self, kernel: KernelProcess, cell: Cell) -> None:
        async with open_capture(cell.on_output) as capture:
            notices = kernel.output.attach(capture)
            cell.begin()
            budget = Budget(cell.timeout)
            with cell.open_scope(budget) as cell.skill_calls:
                running = kernel.start_cell(cell.code, cell.scope, cell.ledger_size)
                self._running = True
                try:
                    with budget.scope:
                        await running.settled.wait()
                    cell.timed_out = budget.scope.cancelled_caught
                except trio.Cancelled:
                    cell.cancelled = not running.settled.is_set()
                    raise
                finally:
                    with trio.CancelScope(shield=True):
                        if not running.settled.is_set():
                            await _stop(kernel, running, cell)
                    self._running = False
                    kernel.output.detach()
                    self._count(running)
                    cell.conclude(running.outcome, capture.output(), notices, kernel.exit_status)

    def _count(self, running: RunningCell) -> None:
        if running.outcome is not None:
            self._deaths = 0
        else:
            self._deaths += 1
            self._kernel = None


async def _stop(kernel: KernelProcess, running: RunningCell, cell: Cell) -> None:
    """Interrupt the cell; if that does not end it in time, kill the kernel. Returns when either has happened."""
    kernel.interrupt()
    with trio.move_on_after(INTERRUPT_GRACE / 2):
        await running.settled.wait()
    if not running.settled.is_set():
        kernel.confirm_interrupt()  # once more: it may have been lost that very moment
        with trio.move_on_after(INTERRUPT_GRACE / 2):
            await running.settled.wait()
    if not running.settled.is_set():
        cell.killed = True
        kernel.kill()
        await running.settled.wait()
