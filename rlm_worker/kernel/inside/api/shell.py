"""`rlm.shell`: jobs, as cells see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlm_wire.methods.jobs import (
    CancelJob,
    CloseJobStdin,
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
from rlm_worker.kernel.inside.api.calls import Calls, operation

READ_LIMIT = 65_536


class ShellJob:
    """A job as it was when it was asked about: `id`, `text`, `exit_code`, `truncated`, `error`, `timed_out`, `running`.

    `ok`: it ended by itself with exit code 0. `signal` is what killed it, `notices` what happened around it.
    """

    def __init__(self, calls: Calls, job: Job) -> None:
        self._calls = calls
        self.id = job.id
        self.text = job.text
        self.exit_code = job.exit_code
        self.signal = job.signal
        self.truncated = job.truncated
        self.error = job.error
        self.timed_out = job.timed_out
        self.running = job.running
        self.notices = job.notices
        self.ok = job.ok

    def __repr__(self) -> str:
        state = "running" if self.running else "timed out" if self.timed_out else f"exit code {self.exit_code}"
        return f"<{self.id} {state}>"

    @operation
    async def result(self, yield_after: float = 300) -> ShellJob:
        """The job once it has ended, or as it is after `yield_after` seconds. Repeatable; never touches the job."""
        return ShellJob(self._calls, await self._calls.request(JobResult("", self.id, yield_after)))

    @operation
    async def read(self, *, cursor: int = 0, max_bytes: int = 16_384, wait: float = 0) -> OutputRange:
        """Output from byte `cursor` on: `text` (or `data`), `next_cursor`, `done`, `truncated`.

        `wait`: seconds to wait for something to read, if there is nothing yet.
        """
        return await self._calls.request(ReadJob("", self.id, cursor, min(max_bytes, READ_LIMIT), wait))

    @operation
    async def info(self) -> JobInfo:
        """Status, times, and where its output is."""
        return await self._calls.request(GetJobInfo("", self.id))

    @operation
    async def cancel(self, *, grace: float = 1.0) -> JobInfo:
        """Stop it and all that descends from it: SIGTERM, `grace` seconds, SIGKILL."""
        return await self._calls.request(CancelJob("", self.id, grace))

    @operation
    async def write(self, data: str | bytes) -> None:
        """Write to its stdin, if it was started with `stdin=True`, or type at its terminal; waits for a slow reader."""
        await self._calls.request(WriteJob("", self.id, data.encode() if isinstance(data, str) else data))

    @operation
    async def close_stdin(self) -> None:
        """End of file on its stdin; Ctrl-D at its terminal."""
        await self._calls.request(CloseJobStdin("", self.id))

    @operation
    async def resize(self, rows: int, cols: int) -> None:
        """Give its terminal another size, if it was started with `tty=True`. It begins with 24 rows, 80 columns."""
        await self._calls.request(ResizeJob("", self.id, rows, cols))


class Shell:
    """Shell commands that may outlive the cell: they run on until they end, are cancelled, or the agent ends."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @operation
    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        yield_after: float = 10,
        timeout: float | None = None,
        stdin: bool = False,
        tty: bool = False,
    ) -> ShellJob:
        """Run a Bash command, or a list of arguments, and wait `yield_after` seconds at most for its end (0: not).

        A job that takes longer runs on: its `text` says how to collect it. `timeout` seconds after its start it is
        killed. `cwd` is relative to the agent's directory. stdin is empty, unless `stdin` is true: see `write`. With
        `tty`, it runs in a terminal: input is echoed, lines end in CR LF, `write("\\x03")` is Ctrl-C.
        """
        return await self._run(command, cwd, env, yield_after, timeout, stdin, tty)

    @operation
    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        tty: bool = False,
    ) -> ShellJob:
        """As `run`, without waiting."""
        return await self._run(command, cwd, env, 0, timeout, stdin, tty)

    @operation
    async def get(self, job_id: str) -> ShellJob:
        """A job by its id, as it is now."""
        return ShellJob(self._calls, await self._calls.request(JobResult("", job_id, 0)))

    @operation
    async def result(self, job_id: str, yield_after: float = 300) -> ShellJob:
        """A job by its id once it has ended, or as it is after `yield_after` seconds."""
        return ShellJob(self._calls, await self._calls.request(JobResult("", job_id, yield_after)))

    @operation
    async def list(self) -> list[JobInfo]:
        """All jobs of this agent, oldest first, also ended ones."""
        return await self._calls.request(ListJobs(""))

    async def _run(
        self,
        command: str | Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        yield_after: float,
        timeout: float | None,
        stdin: bool,
        tty: bool,
    ) -> ShellJob:
        text = command if isinstance(command, str) else list(command)
        place = None if cwd is None else str(cwd)
        variables = None if env is None else dict(env)
        request = RunJob("", text, place, variables, yield_after, timeout, stdin, tty)
        return ShellJob(self._calls, await self._calls.request(request))

    @operation
    async def setenv(self, variables: Mapping[str, str] | None = None, /, **more: str) -> dict[str, str]:
        """Set variables for all later jobs and services of this agent; returns all that are set."""
        return await self._calls.request(SetEnvironment("", {**(variables or {}), **more}))

    @operation
    async def getenv(self) -> dict[str, str]:
        """What `setenv` has set."""
        return await self._calls.request(GetEnvironment(""))
