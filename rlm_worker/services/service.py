"""One service over all its runs: started, ready, restarted, stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.events import ServiceChanged
from rlm_wire.methods.services import Restart, ServiceInfo, ServiceStatus, StartService
from rlm_worker.events import Events
from rlm_worker.jobs.commands import GRACE, ShellCommand, keep_output
from rlm_worker.jobs.output import KeptOutput
from rlm_worker.jobs.texts import last_words
from rlm_worker.services.readiness import Check
from rlm_worker.services.runs import Run, open_run

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds before a restart, doubling from the first to the longest: a crash loop must not keep the machine busy."""

STEADY = 60.0
"""Seconds of running after which a service counts as having been well, and the pause starts anew."""


class Service:
    """One declared service. `live` is its life; `settled` is set once it is ready or has ended, `ended` in the end."""

    def __init__(
        self, request: StartService, command: ShellCommand, check: Check | None, output: KeptOutput, events: Events
    ) -> None:
        self.name = request.name
        self.owner = request.agent
        self.keep = request.keep
        self.output = output
        self.settled = trio.Event()
        self.ended = trio.Event()
        self._restart: Restart = request.restart
        self._command = command
        self._check = check
        self._events = events
        self._created_at = time.time()
        self._status: ServiceStatus = "starting"
        self._pid: int | None = None
        self._exit_code: int | None = None
        self._signal: int | None = None
        self._restarts = 0
        self._error: str | None = None
        self._grace = GRACE
        self._begun = False
        self._stopping = False
        self._stop = trio.CancelScope()
        self._whole = trio.CancelScope()

    async def live(self, on_start: Callable[[], None]) -> None:
        """Run it, again and again if its policy says so; calls `on_start` when the first run has been started.

        Raises what starting raises the first time. Cancellation: ends it, unless it is one that runs on.
        """
        try:
            with self._whole:
                await self._runs(on_start)
        except CallError as error:
            if not self._begun:
                raise
            self._error = error.message
            self._change("failed")
        finally:
            await self.output.finish()
            self.settled.set()
            self.ended.set()

    async def _runs(self, on_start: Callable[[], None]) -> None:
        pause = FIRST_PAUSE
        while True:
            began = trio.current_time()
            async with open_run(self._command, detached=self.keep) as run:
                self._pid = run.pid
                if not self._begun:
                    self._begun = True
                    on_start()
                self._stop = trio.CancelScope()
                self.output.continue_with()
                await keep_output(self.output, run.output, partial(self._attend, run))
            self._pid = None
            if self._stopping or not self.settled.is_set() or not self._wants_restart():
                self._change("stopped" if self._stopping else "failed")
                return
            self._change("restarting")
            if trio.current_time() - began > STEADY:
                pause = FIRST_PAUSE
            self._stop = trio.CancelScope()
            with self._stop:
                await trio.sleep(pause)
            if self._stopping:
                self._change("stopped")
                return
            pause = min(2 * pause, LONGEST_PAUSE)
            self._restarts += 1

    async def _attend(self, run: Run) -> None:
        """Until this run has ended, or was stopped."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._become_ready, self.output.total)
            if self._stopping:
                self._stop.cancel()
            with self._stop:
                self._exit_code, self._signal = await run.wait()
            if self._stop.cancelled_caught:
                await run.stop(self._grace)
            nursery.cancel_scope.cancel()

    async def _become_ready(self, start: int) -> None:
        if self._check is not None:
            await self._check(self.output, start)
        self._change("ready")
        self.settled.set()

    def _wants_restart(self) -> bool:
        return self._restart == "always" or (self._restart == "on_failure" and self._exit_code != 0)

    async def stop(self, grace: float) -> None:
        """Stop it and all that descends from it. Cancellation: it is stopped all the same."""
        self._grace = grace
        self._stopping = True
        self._stop.cancel("the service was stopped")
        await self.ended.wait()

    async def let_go(self) -> None:
        """Look after it no longer; it runs on if it is one that does."""
        self._whole.cancel("its agent is closed")
        await self.ended.wait()

    def how_it_ended(self) -> str:
        """For an error message: code or signal, and the end of its log."""
        how = f"signal {self._signal}" if self._signal is not None else f"exit code {self._exit_code}"
        return f"{how}; {self.log_end()}"

    def log_end(self) -> str:
        return f"its log ends with:\n{last_words(self.output)}" if self.output.total else "its log is empty"

    def info(self) -> ServiceInfo:
        return ServiceInfo(
            name=self.name,
            owner_id=self.owner,
            command=self._command.text,
            cwd=self._command.cwd,
            status=self._status,
            created_at=self._created_at,
            pid=self._pid,
            restarts=self._restarts,
            exit_code=self._exit_code,
            signal=self._signal,
            restart=self._restart,
            keep=self.keep,
            log_bytes=self.output.total,
            error=self._error,
        )

    def _change(self, status: ServiceStatus) -> None:
        self._status = status
        content = ServiceChanged(
            name=self.name,
            status=status,
            pid=self._pid,
            exit_code=self._exit_code,
            signal=self._signal,
            restarts=self._restarts,
            error=self._error,
        )
        self._events.publish(self.owner, content)
