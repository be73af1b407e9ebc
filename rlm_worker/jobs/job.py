"""One job: from its start to its end, and who waits for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.events import ShellCollected, ShellCompleted
from rlm_wire.methods.jobs import Job, JobInfo, JobStatus
from rlm_worker.events import Events
from rlm_worker.jobs.commands import GRACE, ShellCommand, keep_output
from rlm_worker.jobs.output import KeptOutput
from rlm_worker.jobs.stdin import JobInput
from rlm_worker.jobs.texts import ended_text, last_words, running_text
from rlm_worker.processes import Process, output_pipe
from rlm_worker.processes.descriptors import Terminal, open_terminal


class ShellJob:
    """One job of an agent. `run` is its life, `ended` the end of it."""

    def __init__(
        self, job_id: str, owner: str, command: ShellCommand, output: KeptOutput, events: Events, timeout: float | None
    ) -> None:
        self.id = job_id
        self.owner = owner
        self.output = output
        self.input: JobInput | None = None
        self.terminal: Terminal | None = None
        self.ended = trio.Event()
        self._command = command
        self._events = events
        self._timeout = timeout
        self._status: JobStatus = "running"
        self._exit_code: int | None = None
        self._signal: int | None = None
        self._error: str | None = None
        self._created_at = time.time()
        self._started = self._stopped = trio.current_time()
        self._stop = trio.CancelScope()
        self._grace = GRACE
        self._cancelled = False
        self._waiting = 0
        self._announced = False
        self._collected = False

    async def run(self, stdin: bool, tty: bool, on_start: Callable[[], None]) -> None:
        """Start it, call `on_start`, and look after it until it has ended.

        Raises what starting raises; nothing once it was started. Cancellation: ends it and all that descends from it.
        """
        with open_terminal() if tty else output_pipe() as pipe:
            try:
                if isinstance(pipe, Terminal):
                    self.terminal = pipe
                    self.input = JobInput(pipe.read)
                elif stdin:
                    self.input = JobInput()
                process = await self._command.start(pipe, self.input.read_end if self.input else None)
            except BaseException:
                if self.input is not None:
                    self.input.end("the job was not started")
                raise
            pipe.close_write()
            if self.input is not None:
                self.input.started()
            self._stop.deadline = math.inf if self._timeout is None else trio.current_time() + self._timeout
            on_start()
            try:
                await keep_output(self.output, pipe.read, partial(self._wait_for, process))
            except CallError as error:
                self._error = error.message
            finally:
                process.release()
                await self.output.finish()
                self._end(process)

    async def _wait_for(self, process: Process) -> None:
        try:
            with self._stop:
                await process.wait()
        finally:
            if process.returncode is None:
                await process.kill_tree(grace=self._grace)

    def _end(self, process: Process) -> None:
        self._stopped = trio.current_time()
        if self.input is not None:
            self.input.end("the job has ended")
        code = process.returncode
        if self._error is not None:
            self._status = "failed"
        elif self._stop.cancelled_caught:
            self._status = "cancelled" if self._cancelled else "timed_out"
        elif code is None:
            self._status = "cancelled"
        elif code >= 0:
            self._status, self._exit_code = "completed", code
        else:
            self._status, self._signal = "completed", -code
        self._command.notices += [f"Still running: {survivor}" for survivor in process.left]
        self.ended.set()
        if not self._waiting:
            self._announce(collected=False)

    async def wait(self, seconds: float) -> Job:
        """The job once it has ended, or as it is after `seconds`. Cancellation: never touches it."""
        self._waiting += 1
        returned = False
        try:
            with trio.move_on_after(seconds):
                await self.ended.wait()
            returned = True
        finally:
            self._waiting -= 1
            if self.ended.is_set() and (returned or not self._waiting):
                self._announce(collected=returned)
        if self.ended.is_set() and not self._collected:
            self._collected = True
            self._events.publish(self.owner, ShellCollected(self.id))
        return self.snapshot(with_output=seconds > 0)

    async def cancel(self, grace: float) -> None:
        """End it and all that descends from it; returns when it has ended. Cancellation: it is ended all the same."""
        self._grace = grace
        self._cancelled = True
        self._stop.cancel("the job was cancelled")
        await self.ended.wait()

    def snapshot(self, *, with_output: bool = True) -> Job:
        running = not self.ended.is_set()
        return Job(
            id=self.id,
            text=running_text(self.id, self.output, with_output=with_output) if running else ended_text(self.output),
            exit_code=self._exit_code,
            signal=self._signal,
            truncated=not running and self.output.total > len(self.output.head()),
            error=self._error,
            timed_out=self._status == "timed_out",
            running=running,
            notices=self._notices(),
        )

    def info(self) -> JobInfo:
        running = not self.ended.is_set()
        return JobInfo(
            id=self.id,
            owner_id=self.owner,
            command=self._command.text,
            cwd=self._command.cwd,
            status=self._status,
            created_at=self._created_at,
            elapsed_seconds=(trio.current_time() if running else self._stopped) - self._started,
            exit_code=self._exit_code,
            signal=self._signal,
            output_path=str(self.output.path) if self.output.path else None,
            output_bytes=self.output.total,
            output_complete=self.output.complete,
            output_truncated=self.output.truncated,
            error=self._error,
            timeout=self._timeout,
            notices=self._notices(),
        )

    def _notices(self) -> list[str]:
        lost = [f"Not all of its output was kept: {self.output.reason}."] if self.output.truncated else []
        return self._command.notices + lost

    def _announce(self, *, collected: bool) -> None:
        if self._announced:
            return
        self._announced, self._collected = True, collected
        self._events.publish(
            self.owner,
            ShellCompleted(
                job=self.id,
                status=self._status,
                exit_code=self._exit_code,
                output_complete=self.output.complete,
                output_truncated=self.output.truncated,
                text=last_words(self.output),
                error=self._error,
                collected=collected,
            ),
        )
