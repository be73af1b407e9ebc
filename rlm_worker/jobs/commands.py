"""How a shell command of a job or service is checked and started, and its output kept until it has ended."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError
from rlm_worker.jobs.output import KeptOutput
from rlm_worker.paths import checked_path
from rlm_worker.processes import DirectoryError, Process, Reaper, memory_file
from rlm_worker.processes.descriptors import OutputPipe, Terminal
from rlm_worker.roster import Owner, Roster
from rlm_worker.tools.bash import find_bash

COMMAND_LIMIT = 65_536
"""Characters of a command. A longer script belongs in a file."""

GRACE = 1.0
"""Seconds from SIGTERM to SIGKILL, if nobody says otherwise."""

EOF_WAIT = 2.0
"""Seconds for which output is still taken once bash has ended: `tee >(wc -c)` prints after it."""

BASH_OPTIONS = ("--noprofile", "--norc", "-o", "pipefail")

NO_TERMINAL, TERMINAL = "dumb", "xterm-256color"
"""TERM of commands without a terminal, unless somebody says otherwise, and of those with one."""


class Place(Protocol):
    """Where a session's commands run."""

    reaper: Reaper
    roster: Roster
    cwd: str
    env: dict[str, str]

    def fallback_directory(self) -> str:
        """A directory to use when the agent's own has vanished."""
        ...

    def check_command(self, agent: str, command: str) -> None:
        """Raises CallError("permission_denied") if the agent may not run it."""
        ...


class ShellCommand:
    """A command that was checked: its Bash text, its directory, its environment; and whose it is.

    `cwd` is relative to the agent's directory; None and an empty text are that one. `env` must have been checked.
    Raises CallError: `invalid_argument`, or as `Place.check_command`.
    """

    def __init__(
        self, place: Place, owner: Owner, command: str | list[str], cwd: str | None, env: Mapping[str, str]
    ) -> None:
        self.text = _text(command)
        place.check_command(owner.agent, self.text)
        self.cwd = checked_path(str(Path(place.cwd, checked_path(cwd)))) if cwd else place.cwd
        self.notices: list[str] = []
        self._place = place
        self._owner = owner
        self._own_directory = not cwd
        self._env = env

    async def start(self, pipe: OutputPipe, stdin: int | None = None) -> Process:
        """Start it with bash; its output goes to `pipe`, where a terminal is its input, too.

        Raises what `Reaper.spawn` raises.

        The agent's own directory may have been removed: then it runs in another one, and `notices` says so.
        """
        if isinstance(pipe, Terminal):
            stdin = pipe.write
        fds = {1: pipe.write, 2: pipe.write} | ({} if stdin is None else {0: stdin})
        with memory_file("command", self.text.encode("utf-8", "surrogateescape")) as script:
            return await self.spawn(list(BASH_OPTIONS), fds, pipe, script)

    async def spawn(
        self, arguments: list[str], fds: Mapping[int, int], pipe: OutputPipe, script: int | None = None
    ) -> Process:
        """Start bash with exactly these arguments and descriptors, in the command's directory and environment."""
        try:
            return await self._spawn(arguments, fds, pipe, script)
        except DirectoryError as error:
            if not self._own_directory:
                raise
            self.cwd = self._place.fallback_directory()
            self.notices.append(f"{error.message}. The command ran in {self.cwd} instead.")
            return await self._spawn(arguments, fds, pipe, script)

    async def _spawn(
        self, arguments: list[str], fds: Mapping[int, int], pipe: OutputPipe, script: int | None
    ) -> Process:
        env = {**self._place.env, **self._env, "PWD": self.cwd}
        terminal = isinstance(pipe, Terminal)
        if terminal and env.get("TERM", NO_TERMINAL) == NO_TERMINAL:
            env["TERM"] = TERMINAL
        argv = [find_bash(env.get("PATH")), *arguments]
        process = await self._place.reaper.spawn(
            argv, cwd=self.cwd, env=env, fds=fds, output=pipe.read, script=script, terminal=terminal
        )
        self._place.roster.add(process, self._owner)
        return process


def _text(command: str | list[str]) -> str:
    text = command if isinstance(command, str) else shlex.join(command)
    if not text.strip():
        raise CallError("invalid_argument", "empty command")
    if len(text) > COMMAND_LIMIT:
        raise CallError("invalid_argument", f"a command has {COMMAND_LIMIT} characters at most: put it into a file")
    if "\0" in text:
        raise CallError("invalid_argument", "a command cannot contain a NUL character")
    return text


async def keep_output(output: KeptOutput, descriptor: int, run: Callable[[], Awaitable[None]]) -> None:
    """Keep what comes out of `descriptor` until `run` has returned, and then what is still to come, within EOF_WAIT.

    Raises what `run` raises. Cancellation: cancels `run`; what was printed until that has ended is kept, too.
    """
    try:
        with one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(output.fill, descriptor)
                await run()
                with trio.move_on_after(EOF_WAIT):
                    await output.wait_complete()
                nursery.cancel_scope.cancel()
    finally:
        await output.drain(descriptor)
