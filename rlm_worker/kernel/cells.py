"""One cell of an agent: run it once, take its result. How a cell's fate is put into status and notices.

Waiting, interrupting and recovering are in `lane`.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

import trio

from rlm_wire.methods.kernels import CellOutcome, CellResult, CellStatus
from rlm_wire.methods.tools import Output, OutputChunk
from rlm_worker.kernel.budget import Budget

OnOutput = Callable[[OutputChunk], Awaitable[None]]

INTERRUPT_GRACE: Final = 2.0
"""Seconds that a cell has to react to an interrupt before its kernel is killed."""

LOST: Final = (
    "Its namespace is lost: variables, imports, threads and background tasks, and what was attached to it has been"
    " stopped; files are as they were left. The cell was not run again. The next cell starts in a fresh kernel."
)


class Cell:
    """A cell that waits, runs, or has run. Made by `Kernels.cell`.

    `run` may be cancelled, and `result` is there all the same: so a handler can write ::

        with call.stoppable():
            await cell.run()
        return cell.result
    """

    def __init__(
        self,
        run: Callable[[Cell], Awaitable[None]],
        code: str,
        timeout: float | None,
        sink: OnOutput | None,
        scope: str,
        open_scope: Callable[[Budget], AbstractContextManager[Mapping[str, int]]],
        ledger_size: int | None,
    ) -> None:
        self.code = code
        self.timeout = timeout
        self.on_output = sink
        self.scope = scope
        self.open_scope = open_scope
        """Within it the cell may make calls, which stop the clock of that budget; gives the count of `skill_calls`."""
        self.skill_calls: Mapping[str, int] = {}
        self.ledger_size = ledger_size
        self.timed_out = False
        self.cancelled = False
        self.killed = False  # by us, because it did not react to the interrupt
        self._run = run
        self._started: float | None = None
        self._result: CellResult | None = None

    async def run(self) -> None:
        """Wait for this cell's turn and run it; then `result` is set.

        Cancellation: a cell that runs is interrupted, and after INTERRUPT_GRACE its kernel killed; one that still
        waits is not run. Either way `result` says so.
        """
        try:
            await self._run(self)
        except BaseException:  # a cancellation, perhaps a group of them: a kernel that was starting has several tasks
            if self._result is None:
                self.refuse("The cell was cancelled before it started.")
            raise

    @property
    def result(self) -> CellResult:
        """How it ended. AssertionError before `run` was left."""
        assert self._result is not None, "a cell has a result once its run() was left"
        return self._result

    def begin(self) -> None:
        self._started = trio.current_time()

    def refuse(self, notice: str) -> None:
        """It did not run, and this is why."""
        self._result = CellResult("not_run", Output(), notices=[notice])

    def conclude(self, outcome: CellOutcome | None, output: Output, notices: list[str], death: int | None) -> None:
        """It ran. `outcome` is None if its kernel died, with exit status `death` (negative: signal; None: unknown)."""
        notices = [*notices, *self._fate(outcome, death)]
        status: CellStatus = "kernel_died" if outcome is None else outcome.status
        if self.cancelled:
            status = "interrupted"
        elif self.timed_out:
            status = "timed_out"
        kernel_side = outcome or CellOutcome("error")
        self._result = CellResult(
            status=status,
            output=output,
            result=kernel_side.result,
            displays=kernel_side.displays,
            error=kernel_side.error,
            notices=[*notices, *kernel_side.notices],
            duration=0.0 if self._started is None else trio.current_time() - self._started,
            skill_calls=dict(self.skill_calls),
        )

    def _fate(self, outcome: CellOutcome | None, death: int | None) -> list[str]:
        cause = "was cancelled" if self.cancelled else f"ran longer than {self.timeout:g} s" if self.timed_out else ""
        if outcome is not None:
            return [f"The cell {cause} and was interrupted; the kernel and its variables live on."] if cause else []
        if self.killed:
            return [f"The cell {cause} and ignored the interrupt, so the kernel was killed. {LOST}"]
        return [f"The kernel process died while the cell ran: {describe_exit(death)}. {LOST}"]


def describe_exit(status: int | None) -> str:
    if status is None:
        return "how is not known"
    if status >= 0:
        return f"it exited with code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"it was killed by signal {-status} ({name})"
