"""One run of a service's command.

A service that is to run on after its session must survive the worker too, even one that was killed. So bash starts it
as a background job and ends at once, which makes it something that was left running (see `rlm_worker.processes`): only
an explicit stop ends it. The worker learns of its end from a pipe that nobody but the shell around it holds.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from rlm_worker.jobs.commands import BASH_OPTIONS, ShellCommand
from rlm_worker.processes import Process, output_pipe
from rlm_worker.processes.descriptors import OutputPipe

_DETACH = (
    # -m: or SIGINT would be ignored in it
    'set -m; { "$BASH" --noprofile --norc -o pipefail -c "$1" 3>&-; echo $? >&3; } </dev/null & exit 0'
)
_REPORT = 3


class Run:
    """A command that runs, its output in the pipe `output`."""

    def __init__(self, process: Process, output: int) -> None:
        self.pid = process.pid
        self.output = output
        self._process = process

    async def wait(self) -> tuple[int | None, int | None]:
        """Its exit code, or the signal that killed it, once it has ended. Cancellation: nothing happens to it."""
        code = await self._process.wait()
        return (code, None) if code >= 0 else (None, -code)

    async def stop(self, grace: float) -> None:
        """End it and all that descends from it. Cancellation: not noticed; bounded by `grace` and a few seconds."""
        await self._process.kill_tree(grace=grace)


class DetachedRun(Run):
    """A run that nothing ends but `stop`, not even the end of the worker. `report` is the pipe that tells its end."""

    def __init__(self, process: Process, output: int, report: int) -> None:
        super().__init__(process, output)
        self.pid = min((left.start_time, left.pid) for left in process.left)[1] if process.left else process.pid
        self._report = report

    async def wait(self) -> tuple[int | None, int | None]:
        said = b""
        while True:
            try:
                data = os.read(self._report, 64)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._report)
                continue
            if not data:
                break
            said += data
        # As bash says it: more than 128 is a signal. Nothing is said if the shell itself was killed.
        code = int(said) if said.strip().isdigit() else 137
        return (None, code - 128) if code > 128 else (code, None)


@asynccontextmanager
async def open_run(command: ShellCommand, *, detached: bool) -> AsyncIterator[Run]:
    """Start `command`; leaving the block ends it unless it is `detached`. Raises what `Reaper.spawn` raises."""
    with output_pipe() as pipe, output_pipe() as report:
        process = await (_detach(command, pipe, report) if detached else command.start(pipe))
        pipe.close_write()
        report.close_write()
        try:
            if detached:
                with trio.CancelScope(shield=True):  # bash has nothing to wait for
                    await process.wait()
                yield DetachedRun(process, pipe.read, report.read)
            else:
                yield Run(process, pipe.read)
        finally:
            if process.returncode is None:
                await process.kill_tree()
            process.release()


async def _detach(command: ShellCommand, pipe: OutputPipe, report: OutputPipe) -> Process:
    arguments = [*BASH_OPTIONS, "-c", _DETACH, "service", command.text]
    return await command.spawn(arguments, {1: pipe.write, 2: pipe.write, _REPORT: report.write}, pipe)
