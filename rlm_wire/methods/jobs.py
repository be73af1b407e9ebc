"""Jobs: background shell commands of an agent, `rlm.shell` in cells and `AgentTools.jobs` in a harness.

A job belongs to the agent that started it and is unknown to every other. It survives its cell, the kernel, timeouts and
cancelled turns; it is stopped when its agent or the session ends. Positions in its output are bytes, everywhere.
"""

from __future__ import annotations

from typing import Literal, Never

import msgspec

from rlm_wire.methods.base import Request, StreamRequest
from rlm_wire.methods.tools import OutputChunk

JobStatus = Literal["running", "completed", "failed", "cancelled", "timed_out"]


class Job(msgspec.Struct, frozen=True):
    """A job at one moment, with its output as a model reads it.

    `text` of an ended job is its output, or its first and last 8 KiB around a marker that says how to read on if that
    is more than 16 KiB (`truncated`). `text` of a running one begins with a marker that names the expression that
    collects it, then the first 16 KiB so far. `notices` tell what happened around it: what it has left running, output
    that could not be kept. `error` says why a job failed.
    """

    id: str
    text: str
    exit_code: int | None = None
    signal: int | None = None
    truncated: bool = False
    error: str | None = None
    timed_out: bool = False
    running: bool = False
    notices: list[str] = []

    @property
    def ok(self) -> bool:
        """It has ended, by itself, with exit code 0."""
        return self.exit_code == 0 and not self.timed_out and self.error is None


class JobInfo(msgspec.Struct, frozen=True):
    """What is known of a job, without its output. An ended job is `completed` whatever its exit code.

    `created_at` is wall clock (seconds since 1970), a label only; `elapsed_seconds` is monotonic. `output_bytes` counts
    all it wrote; `output_complete`: nothing more can come; `output_truncated`: not all of it was kept. `output_path` is
    the file in the workspace that keeps it (None: in memory, it is small), valid while the session lasts.
    """

    id: str
    owner_id: str
    command: str
    cwd: str
    status: JobStatus
    created_at: float
    elapsed_seconds: float
    exit_code: int | None = None
    signal: int | None = None
    output_path: str | None = None
    output_bytes: int = 0
    output_complete: bool = False
    output_truncated: bool = False
    error: str | None = None
    timeout: float | None = None
    notices: list[str] = []


class OutputRange(msgspec.Struct, frozen=True):
    """A piece of kept output, from byte `cursor` on; go on at `next_cursor`.

    `data` ends between UTF-8 characters unless the output itself does not. `skipped` bytes from `cursor` on are not
    there any more (`reason` says why), and `data` begins behind them. `done`: there is nothing behind it and there
    never will be. A cursor past the end gives an empty piece at the end.
    """

    data: bytes
    cursor: int
    next_cursor: int
    done: bool
    skipped: int = 0
    reason: str | None = None

    @property
    def text(self) -> str:
        """`data` as text, invalid bytes replaced."""
        return self.data.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        """Something is missing before `data`."""
        return self.skipped > 0


class RunJob(Request[Job], tag="jobs.run"):
    """Start a command as a job and wait for its end, `yield_after` seconds (0 to 300) at most.

    `command` is a Bash string of 1 to 65,536 characters, or an argument list. It runs under `bash --noprofile --norc -o
    pipefail`; stdout and stderr are one stream; stdin is empty unless `stdin` is true (`jobs.write`). `cwd` is relative
    to the agent's directory; `env` is laid over what `jobs.setenv` set, and that over the agent's environment. After
    `timeout` seconds (None: never) all that descends from it is killed.

    With `tty`, the three streams are a terminal of 80 columns and 24 rows, the job's controlling one, with all that
    terminals do: lines of output end in CR LF, input is echoed, and a Ctrl-C that is written interrupts the job
    (`jobs.write`, `jobs.resize`). What it has left running gets SIGHUP at its end. TERM is xterm-256color.

    Fails with `invalid_argument`, `not_found` (directory), `resource_exhausted` (32 are active, or what the harness
    granted).
    Cancelling stops the waiting; a job that has been started runs on.
    """

    agent: str
    command: str | list[str]
    cwd: str | None = None
    env: dict[str, str] | None = None
    yield_after: float = 10.0
    timeout: float | None = None
    stdin: bool = False
    tty: bool = False


class JobResult(Request[Job], tag="jobs.result"):
    """Wait for the end of a job, `yield_after` seconds (0 to 300) at most. Repeatable: nothing is consumed.

    Fails with `not_found`. Cancelling never touches the job.
    """

    agent: str
    job: str
    yield_after: float = 300.0


class GetJobInfo(Request[JobInfo], tag="jobs.info"):
    """What is known of a job. Fails with `not_found`."""

    agent: str
    job: str


class ListJobs(Request[list[JobInfo]], tag="jobs.list"):
    """All jobs of the agent, oldest first, also ended ones (the latest 1,024 of the session)."""

    agent: str


class ReadJob(Request[OutputRange], tag="jobs.read"):
    """Output from byte `cursor` on: at most `max_bytes` (1 to 65,536), but one whole character in any case.

    `wait`: seconds (0 to 300) to wait for something to read, if there is nothing yet.
    Fails with `not_found`, `invalid_argument`. Cancelling never touches the job.
    """

    agent: str
    job: str
    cursor: int = 0
    max_bytes: int = 16_384
    wait: float = 0.0


class FollowJob(StreamRequest[JobInfo, OutputChunk, Never], tag="jobs.follow"):
    """Output from byte `cursor` on as live items, until the job has ended; then what is known of it.

    Items are gathered for 50 ms. A receiver that lags behind what is kept misses bytes (`OutputChunk.skipped`).
    Fails with `not_found`. Cancelling stops following, answers what is known, and never touches the job.
    """

    agent: str
    job: str
    cursor: int = 0


class CancelJob(Request[JobInfo], tag="jobs.cancel"):
    """Stop a job and all that descends from it: SIGTERM, `grace` seconds (0 to 60), SIGKILL. Answers when it is gone.

    A job that has ended stays as it is. Fails with `not_found`. Cancelling: it is stopped all the same.
    """

    agent: str
    job: str
    grace: float = 1.0


class WriteJob(Request[None], tag="jobs.write"):
    """Write at most 1 MiB to the stdin of a job that was started with `stdin`; answers once the pipe has taken it all.

    With `tty`, it is as if it were typed: control characters mean what the terminal makes of them, and a line may have
    4,095 bytes unless the job reads without lines.

    Fails with `not_found`, `invalid_argument` (too much), `failed_precondition` (started without either, closed, or the
    job has ended or does not read any more). Cancelling: part of it may have been written.
    """

    agent: str
    job: str
    data: bytes


class CloseJobStdin(Request[None], tag="jobs.close_stdin"):
    """End of file on the stdin of a job, behind what is being written. Closing twice is harmless while it runs.

    With `tty`, Ctrl-D is written: it ends the input of whoever reads lines at the moment, and more can be written.
    Fails with `not_found`, `failed_precondition` (started without stdin and tty, or ended).
    """

    agent: str
    job: str


class ResizeJob(Request[None], tag="jobs.resize"):
    """Give the terminal of a job that was started with `tty` another size, each from 1 to 65,535; it gets SIGWINCH.

    Fails with `not_found`, `invalid_argument`, `failed_precondition` (started without tty, or ended).
    """

    agent: str
    job: str
    rows: int
    cols: int


class SetEnvironment(Request[dict[str, str]], tag="jobs.setenv"):
    """Set variables for all later jobs and services of the agent; answers all that are set. At most 256 KiB in all.

    Fails with `invalid_argument` (an impossible name or value), `resource_exhausted`.
    """

    agent: str
    variables: dict[str, str]


class GetEnvironment(Request[dict[str, str]], tag="jobs.getenv"):
    """The variables that `jobs.setenv` has set."""

    agent: str
