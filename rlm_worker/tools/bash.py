"""One command, one fresh bash: how it is started, how it ends, and what is told about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError
from rlm_wire.methods.tools import BashResult
from rlm_worker.paths import checked_path
from rlm_worker.processes import (
    Capture,
    DirectoryError,
    Process,
    Reaper,
    memory_file,
    open_capture,
    output_pipe,
)
from rlm_worker.processes.capture import Sink
from rlm_worker.processes.descriptors import OutputPipe

Stoppable = Callable[[], AbstractContextManager[trio.CancelScope]]


async def run_bash(
    reaper: Reaper,
    command: str,
    *,
    cwd: str,
    env: Mapping[str, str],
    fallback_directory: Callable[[], str] | None = None,
    timeout: float | None = None,
    on_output: Sink | None = None,
    stoppable: Stoppable = trio.CancelScope,
    note_started: Callable[[Process], None] | None = None,
) -> BashResult:
    """Run `command` as bash runs a script file, and return once bash has ended, however long others hold its output.

    stdin is empty, stdout and stderr are one pipe, there is no terminal. The script is read from a file in memory, so
    that its size does not matter and no disk is needed. Background jobs and daemons run on, and are named in `notices`;
    what they print later is thrown away.

    `timeout` in seconds, or cancelling the scope that `stoppable` gives, ends all that descends from bash and gives the
    partial result. `fallback_directory` gives another directory if `cwd` cannot be entered (None: that is an error).
    `note_started` is told of the process.

    Raises CallError: `invalid_argument` (nothing to run, a timeout that is not positive, a NUL character, a `cwd` that
    is too long to be one), or what `Reaper.spawn` raises.
    Cancellation: everything that descends from bash is ended first; there is no result.
    """
    if not command.strip():
        raise CallError("invalid_argument", "empty command")
    if "\0" in command:
        raise CallError("invalid_argument", "a command cannot hold a NUL character: use an escape of printf")
    checked_path(cwd)
    if timeout is not None and not timeout > 0:
        raise CallError("invalid_argument", f"a timeout must be positive, not {timeout}")
    start = trio.current_time()
    notices: list[str] = []
    with output_pipe() as pipe:
        try:
            process = await _start(reaper, command, cwd, env, pipe)
        except DirectoryError as error:
            if fallback_directory is None:
                raise
            cwd = fallback_directory()
            notices.append(f"{error.message}. The command ran in {cwd} instead.")
            process = await _start(reaper, command, cwd, env, pipe)
        pipe.close_write()
        if note_started is not None:
            note_started(process)
        try:
            async with open_capture(on_output) as capture:
                timed_out, cancelled = await _finish(process, capture, pipe.read, timeout, stoppable)
        finally:
            process.release()
    notices += [f"Still running: {survivor}" for survivor in process.left]
    returncode = process.returncode
    ended = returncode is not None and returncode >= 0
    return BashResult(
        exit_code=returncode if ended else None,
        output=capture.output(),
        timed_out=timed_out,
        cancelled=cancelled,
        duration=trio.current_time() - start,
        signal=-returncode if returncode is not None and returncode < 0 else None,
        notices=notices,
    )


async def _start(reaper: Reaper, command: str, cwd: str, env: Mapping[str, str], pipe: OutputPipe) -> Process:
    with memory_file("command", command.encode("utf-8", "surrogateescape")) as script:
        return await reaper.spawn(
            [find_bash(env.get("PATH"))],
            cwd=cwd,
            env={**env, "PWD": cwd},  # so that a path through a symbolic link is kept as it is
            fds={1: pipe.write, 2: pipe.write},
            output=pipe.read,
            script=script,
        )


async def _finish(
    process: Process, capture: Capture, output: int, timeout: float | None, stoppable: Stoppable
) -> tuple[bool, bool]:
    """Read until the process has ended, or end it: (timed out, cancelled)."""
    with one_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(capture.read, output)
            try:
                with stoppable() as stop, trio.move_on_after(math.inf if timeout is None else timeout) as limit:
                    await process.wait()
            finally:
                if process.returncode is None:
                    await process.kill_tree()
            nursery.cancel_scope.cancel()
    capture.drain(output)
    return limit.cancelled_caught, stop.cancelled_caught


@lru_cache(maxsize=16)
def find_bash(path: str | None) -> str:
    import shutil  # slow to import, and the worker should listen soon

    return shutil.which("bash", path=path) or "/bin/bash"
