"""Running cells on the kernel's main thread, over an asyncio loop that lives across cells.

Between cells the loop runs, so background tasks go on. A cell with top-level await runs inside the loop. Any other
cell runs outside of it, while it stands still: so `asyncio.run`, `trio.run` and `loop.run_until_complete` work there
as in any script.

An interrupt is a SIGINT, and behind it the word which cell it is for. Plain code gets KeyboardInterrupt; an awaiting
cell is cancelled. Between cells the signal is ignored: it was meant for a cell that had just ended, or for one that has
not begun, which is then interrupted by the word. While IPython prepares a cell the interrupt waits for the user's code:
an exception just anywhere in there could be swallowed.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

from rlm_wire.broker.scopes import current_scope
from rlm_wire.methods.kernels import CellError, CellOutcome, KernelVariables
from rlm_worker.git_guard.python import refusal
from rlm_worker.kernel.inside import inspection, streams
from rlm_worker.kernel.inside.record import CellRecord, class_name
from rlm_worker.kernel.inside.shell import KernelShell

_create_task = asyncio.create_task
Done = Callable[[CellOutcome], None]


class Executor:
    """The main thread's side; `submit` and `stop` may be called from any thread."""

    def __init__(self, shell: KernelShell, output_fd: int) -> None:
        self.notices: list[str] = []  # go out with the next outcome
        self.guard_git = False
        self._shell = shell
        self._output_fd = output_fd
        self._cells: collections.deque[tuple[str, int, str | None, Done]] = collections.deque()
        self._number = 0  # of the cell that runs; 0 between cells
        self._to_interrupt = 0  # number of the last cell that an interrupt was meant for
        self._struck = 0  # number of the last cell that a SIGINT reached
        self._in_user_code = False
        self._reached = False  # the user's code, since it was last asked
        self._pending = False  # an interrupt waits for the user's code
        self._stopping = False
        self._idle = False
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        shell.loop_runner = self._run_in_loop
        shell.user_code = self._user_code
        self._let_plain_cells_create_tasks()

    @property
    def busy(self) -> bool:
        """A cell runs at this moment, or waits to. False from before its outcome is told."""
        return bool(self._number or self._cells)

    def inspect(self) -> KernelVariables:
        """The user's variables, from any thread."""
        return inspection.variables(self._shell.user_ns, self._shell.user_ns_hidden, self.busy)

    def preload(self, modules: Iterable[ModuleType]) -> None:
        """Have these in the namespace of cells, from any thread."""
        self._shell.preload(*modules)

    def submit(self, code: str, number: int, scope: str | None, done: Done) -> None:
        """Queue a cell; whatever it starts carries `scope`. `done` is called with its outcome on the main thread."""
        self._cells.append((code, number, scope, done))
        self._wake()

    def interrupt(self, number: int) -> None:
        """A SIGINT was sent for that cell: send it again if it did not reach the cell.

        It may have come before the cell had begun, or between a thread's look for signals and its sleep.
        """
        self._to_interrupt = number
        if self._number == number != self._struck:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def stop(self) -> None:
        """Make `run` return once no cell runs."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(Exception):  # a cell broke the loop: before a new one runs, the queue is looked at
            self._loop.call_soon_threadsafe(self._leave_background)

    def _leave_background(self) -> None:
        if self._idle:  # else this runs inside a cell's loop, which must not be stopped
            self._loop.stop()

    def close(self) -> None:
        """Close the loop. For an executor that is not the process's last."""
        self._loop.close()

    def run(self) -> None:
        """Run cells as they come, and the loop between them, until `stop`."""
        signal.signal(signal.SIGINT, _ignore)
        pid = os.getpid()
        self._run("pass", silent=True)  # while nobody waits: pages that cells write to become this process's own
        while True:
            if self._cells:
                self._number = self._cells[0][1]  # first, so that it is busy throughout
                code, _, scope, done = self._cells.popleft()
                token = current_scope.set(scope)
                outcome = self._run_cell(code)
                self._number = 0
                current_scope.reset(token)
                if os.getpid() != pid:  # the cell forked, and this is the child that ran off its end
                    os._exit(0 if outcome.status == "ok" else 1)
                done(outcome)
            if self._stopping and not self._cells:
                return
            self._run_background()  # also if the next cell is there: it may not get a loop that this one broke

    def _set_loop(self) -> None:
        """Make the kernel's loop the current one again; a cell may have set another, or closed it."""
        if self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def _run_background(self) -> None:
        """Run the loop until a cell comes; one turn if one has come, which shows whether a cell broke the loop."""
        self._set_loop()
        self._idle = True
        try:
            if self._cells or self._stopping:  # they came before there was a loop to wake
                self._loop.call_soon(self._leave_background)
            self._loop.run_forever()
        except Exception as failure:  # noqa: BLE001  not a task's: the loop itself is of no use any more
            self._replace_loop(failure)
        except BaseException:  # noqa: BLE001  SystemExit or KeyboardInterrupt of a background task ends that task only
            with contextlib.suppress(BaseException):  # sys.stderr may be anything
                traceback.print_exc()
        finally:
            self._idle = False

    def _replace_loop(self, failure: Exception) -> None:
        self.notices.append(
            "The event loop was broken by an earlier cell and has been replaced; its background tasks are gone."
            f" ({class_name(failure)})"
        )
        with contextlib.suppress(Exception):  # only marked as closed: its own way of closing stumbles as well
            asyncio.BaseEventLoop.close(self._loop)  # type: ignore[arg-type]
        asyncio._set_running_loop(None)  # noqa: SLF001  or no other could ever run
        self._loop = asyncio.new_event_loop()

    def _run_cell(self, code: str) -> CellOutcome:
        if self.guard_git and (reason := self._refusal(code)) is not None:
            return CellOutcome("error", error=CellError("PermissionError", reason, f"PermissionError: {reason}"))
        record = self._shell.record = CellRecord(getattr(sys, "last_value", None))
        record.notices, self.notices = self.notices, []
        record.notices += streams.mend(self._output_fd)
        self._cancelled = self._pending = self._reached = False
        error: BaseException | None
        try:
            self._set_loop()
            signal.signal(signal.SIGINT, self._interrupt_plain)
            self._pending |= self._to_interrupt == self._number
            try:
                result = self._run(code)
            finally:
                signal.signal(signal.SIGINT, _ignore)
            error = result.error_before_exec or result.error_in_exec
        except BaseException as failure:  # noqa: BLE001  an interrupt or exhausted memory beside the user's code
            error = failure
        if error is not None and not self._reached:
            self._leave_if_broken(error)
        try:
            streams.flush()
            return record.outcome(error, interrupted=self._cancelled or _is_interrupt(error))
        except BaseException as failure:  # noqa: BLE001  no memory left, or user objects that no guard was ready for
            name = class_name(failure)
            return CellOutcome("error", error=CellError(name, f"the result could not be reported: {name}", ""))

    def _refusal(self, code: str) -> str | None:
        """Why the git guard refuses the cell, if it does. Of shell escapes and magics IPython makes Python first."""
        try:
            code = self._shell.transform_cell(code)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001  it is not even that: running it will tell
            return None
        return refusal(code)

    def _run(self, code: str, *, silent: bool = False) -> Any:
        return self._shell.run_cell(code, store_history=True, silent=silent)  # type: ignore[no-untyped-call]

    def _leave_if_broken(self, error: BaseException) -> None:
        """End this process if not even an empty cell runs: what an earlier one broke, no later one could mend."""
        with contextlib.suppress(BaseException):
            self._run("pass", silent=True)
        if not self._reached:
            what = CellRecord().describe(error)
            text = f"An earlier cell broke what runs cells, so this kernel ends ({what.name}: {what.message[:1000]})\n"
            os.write(self._output_fd, text.encode("utf-8", "replace"))
            os._exit(1)

    def _run_in_loop(self, cell: Coroutine[Any, Any, Any]) -> Any:
        """Run a cell that awaits, to its end, inside the loop."""
        task = self._task = self._loop.create_task(cell)
        signal.signal(signal.SIGINT, self._interrupt_awaiting)
        try:
            while True:
                try:
                    return self._loop.run_until_complete(task)
                except (KeyboardInterrupt, SystemExit) as failure:
                    if task.done():
                        raise
                    if isinstance(failure, KeyboardInterrupt):  # it struck a background task; it was meant for the cell
                        self._cancel_cell()
        finally:
            signal.signal(signal.SIGINT, self._interrupt_plain)
            self._task = None

    @contextlib.contextmanager
    def _user_code(self) -> Iterator[None]:
        """Around the user's own code in a cell: the part that an interrupt may strike."""
        self._in_user_code = self._reached = True
        try:
            if self._pending:
                self._pending = False
                raise KeyboardInterrupt
            yield
        finally:
            self._in_user_code = False

    def _interrupt_plain(self, _signal: int, _frame: FrameType | None) -> None:
        self._struck = self._number
        if self._in_user_code:
            raise KeyboardInterrupt
        self._pending = True

    def _interrupt_awaiting(self, _signal: int, _frame: FrameType | None) -> None:
        if asyncio.current_task(self._loop) is not None:  # plain code inside a task, which no cancellation would reach
            self._interrupt_plain(_signal, _frame)
            return
        self._struck = self._number
        self._cancel_cell()
        self._loop.call_soon_threadsafe(_ignore)  # a signal handler alone does not end the loop's wait

    def _let_plain_cells_create_tasks(self) -> None:
        """`asyncio.create_task` in a cell without await starts a background task, as in a notebook.

        Only where it would raise for want of a running loop, on the main thread; all else of asyncio is left alone.
        """

        @functools.wraps(_create_task)
        def create_task(coro: Any, **options: Any) -> Any:
            try:
                loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
            except RuntimeError:
                if threading.current_thread() is not threading.main_thread():
                    raise
                loop = self._loop
            return loop.create_task(coro, **options)

        asyncio.create_task = asyncio.tasks.create_task = create_task

    def _cancel_cell(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()


def _ignore(*_: object) -> None:
    pass


def _is_interrupt(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)
