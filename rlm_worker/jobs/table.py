"""All jobs of a session: whose they are, how many may run, and what each operation on them does."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError
from rlm_wire.methods.events import ShellStarted
from rlm_wire.methods.jobs import (
    CancelJob,
    CloseJobStdin,
    FollowJob,
    GetEnvironment,
    GetJobInfo,
    Job,
    JobInfo,
    JobResult,
    ListJobs,
    OutputRange,
    ReadJob,
    ResizeJob,
    RunJob,
    SetEnvironment,
    WriteJob,
)
from rlm_wire.methods.sessions import Quotas
from rlm_wire.methods.tools import OutputChunk
from rlm_worker.environment import checked_environment
from rlm_worker.events import Events
from rlm_worker.jobs.arguments import GRACE_LIMIT, positive, read_output, waiting
from rlm_worker.jobs.commands import GRACE, Place, ShellCommand
from rlm_worker.jobs.disk import Disk
from rlm_worker.jobs.job import ShellJob
from rlm_worker.jobs.output import KeptOutput
from rlm_worker.jobs.stdin import JobInput
from rlm_worker.processes.capture import CHUNK, GATHER
from rlm_worker.roster import Owner

REMEMBERED = 1024
"""Ended jobs that are remembered; older ones are forgotten."""

ENVIRONMENT_LIMIT = 256 * 1024

SIZE_LIMIT = 65_535
"""Rows and columns of a terminal: the system has 16 bits for each."""

Send = Callable[[OutputChunk], Awaitable[None]]
Stoppable = Callable[[], AbstractContextManager[trio.CancelScope]]


class Jobs:
    """The jobs of one session, each the business of its agent alone. Made by `open_jobs`."""

    def __init__(self, place: Place, disk: Disk, events: Events, quotas: Quotas, nursery: trio.Nursery) -> None:
        self.quotas = quotas
        self._place = place
        self._disk = disk
        self._events = events
        self._nursery = nursery
        self._jobs: dict[str, ShellJob] = {}
        self._active = 0
        self._last_number = 0
        self._variables: dict[str, dict[str, str]] = {}

    async def run(self, request: RunJob) -> Job:
        wait = waiting(request.yield_after, "yield_after")
        timeout = positive(request.timeout, "timeout")
        env = {**self.variables(request.agent), **checked_environment(request.env or {})}
        command = ShellCommand(self._place, Owner(request.agent, "job"), request.command, request.cwd, env)
        self._last_number += 1
        name = f"job-{self._last_number}"
        output = KeptOutput(self._disk, name, self.quotas.job_bytes)
        job = ShellJob(name, request.agent, command, output, self._events, timeout)
        with one_error():
            await self._nursery.start(self._live, job, request.stdin, request.tty)
        return await job.wait(wait)

    async def _live(self, job: ShellJob, stdin: bool, tty: bool, task_status: trio.TaskStatus[None]) -> None:
        if self._active >= self.quotas.active_jobs:
            message = f"active shell job limit reached ({self.quotas.active_jobs}): cancel one, or wait for its end"
            raise CallError("resource_exhausted", message, retryable=True)

        def started() -> None:
            self._jobs[job.id] = job
            info = job.info()
            self._events.publish(job.owner, ShellStarted(job.id, info.command, info.cwd))
            task_status.started()

        self._active += 1
        try:
            await job.run(stdin, tty, started)
        finally:
            self._active -= 1
        if len(self._jobs) - self._active > REMEMBERED:
            await self._forget(next(job for job in self._jobs.values() if job.ended.is_set()))

    async def result(self, request: JobResult) -> Job:
        wait = waiting(request.yield_after, "yield_after")
        return await self.job(request.agent, request.job).wait(wait)

    async def info(self, request: GetJobInfo) -> JobInfo:
        return self.job(request.agent, request.job).info()

    async def list_all(self, request: ListJobs) -> list[JobInfo]:
        return [job.info() for job in self._jobs.values() if job.owner == request.agent]

    async def read(self, request: ReadJob) -> OutputRange:
        output = self.job(request.agent, request.job).output
        return await read_output(output, request.cursor, request.max_bytes, request.wait)

    async def follow(self, request: FollowJob, send: Send, stoppable: Stoppable) -> JobInfo:
        """Send output until the job has ended, or the scope that `stoppable` gives was cancelled."""
        job = self.job(request.agent, request.job)
        cursor, done = request.cursor, False
        with stoppable():
            while not done:
                await job.output.wait_beyond(cursor)
                with trio.move_on_after(GATHER):
                    await job.output.wait_beyond(cursor + CHUNK - 1)
                piece = await read_output(job.output, cursor, CHUNK, math.inf)
                if piece.data or piece.skipped:
                    await send(OutputChunk(piece.data, piece.skipped))
                cursor, done = piece.next_cursor, piece.done
            await job.ended.wait()
        return job.info()

    async def cancel(self, request: CancelJob) -> JobInfo:
        grace = waiting(request.grace, "grace", GRACE_LIMIT)
        job = self.job(request.agent, request.job)
        await job.cancel(grace)
        return job.info()

    async def write(self, request: WriteJob) -> None:
        await self._input(request.agent, request.job).write(request.data)

    async def close_stdin(self, request: CloseJobStdin) -> None:
        await self._input(request.agent, request.job).close()

    async def resize(self, request: ResizeJob) -> None:
        if not (1 <= request.rows <= SIZE_LIMIT and 1 <= request.cols <= SIZE_LIMIT):
            raise CallError("invalid_argument", f"a terminal has from 1 to {SIZE_LIMIT} rows and columns")
        job = self.job(request.agent, request.job)
        if job.terminal is None:
            raise CallError("failed_precondition", f"{job.id} was started without tty=True: it has no terminal")
        if job.ended.is_set():
            raise CallError("failed_precondition", "the job has ended")
        job.terminal.resize(request.rows, request.cols)

    async def setenv(self, request: SetEnvironment) -> dict[str, str]:
        variables = {**self.variables(request.agent), **checked_environment(request.variables)}
        if sum(len(name) + len(value) for name, value in variables.items()) > ENVIRONMENT_LIMIT:
            raise CallError("resource_exhausted", f"the variables have more than {ENVIRONMENT_LIMIT} characters in all")
        self._variables[request.agent] = variables
        return variables

    async def getenv(self, request: GetEnvironment) -> dict[str, str]:
        return dict(self.variables(request.agent))

    # ------------------------------------------------------ for the rest of the worker

    def job(self, agent: str, name: str) -> ShellJob:
        """A job of that agent. Raises CallError("not_found")."""
        job = self._jobs.get(name)
        if job is None or job.owner != agent:
            raise CallError("not_found", f"unknown job or job is not owned by this agent: {name!r}")
        return job

    def variables(self, agent: str) -> Mapping[str, str]:
        """What the agent has set for its jobs and services."""
        return self._variables.get(agent, {})

    async def close_agent(self, agent: str) -> int:
        """End the agent's jobs and forget them; returns how many were running."""
        mine = [job for job in self._jobs.values() if job.owner == agent]
        running = [job for job in mine if not job.ended.is_set()]
        async with trio.open_nursery() as nursery:
            for job in running:
                nursery.start_soon(job.cancel, GRACE)
        self._variables.pop(agent, None)
        for job in mine:
            await self._forget(job)
        return len(running)

    async def make_room(self) -> bool:
        """Give up the output of the job that ended first; False if no ended job has output on disk."""
        for job in list(self._jobs.values()):
            if job.ended.is_set() and await job.output.evict():
                return True
        return False

    def _input(self, agent: str, name: str) -> JobInput:
        job = self.job(agent, name)
        if job.input is None:
            raise CallError("failed_precondition", f"{name} was started without stdin=True: its stdin is empty")
        return job.input

    async def _forget(self, job: ShellJob) -> None:
        self._jobs.pop(job.id, None)
        with trio.CancelScope(shield=True):
            await job.output.evict()


@asynccontextmanager
async def open_jobs(place: Place, disk: Disk, events: Events, quotas: Quotas) -> AsyncIterator[Jobs]:
    """The jobs of a session; leaving ends all of them. Cancellation: as leaving."""
    with one_error():
        async with trio.open_nursery() as nursery:
            jobs = Jobs(place, disk, events, quotas, nursery)
            disk.make_room = jobs.make_room
            try:
                yield jobs
            finally:
                nursery.cancel_scope.cancel("the session is ending")
