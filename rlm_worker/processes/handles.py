"""What the worker holds of a process: a handle to wait for it, signal it and end its tree, and how one is named."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

import trio

from rlm_wire.errors import CallError
from rlm_worker.processes import wire

if TYPE_CHECKING:
    from rlm_worker.processes.supervision import Reaper

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL: enough to flush and to remove a lock file, short enough to wait for."""

KILL_WAIT = 5.0
"""Seconds for killed processes to disappear. One that sleeps uninterruptibly (a dead network disk) may stay longer."""

Role = Literal["root", "member", "job", "daemon"]


class Survivor(NamedTuple):
    """A process that runs on after its command: `start_time` in clock ticks since boot, `command` as people read it."""

    pid: int
    start_time: int
    command: str

    def __str__(self) -> str:
        started = datetime.fromtimestamp(started_at(self.start_time), UTC)
        return f"pid {self.pid}, started {started:%Y-%m-%d %H:%M:%S} UTC: {self.command}"


class Running(NamedTuple):
    """A process that runs: `key` is that of the `Process` it belongs to (0: unknown).

    `role`: that process itself, what descends from it, or what it has left: background jobs and daemons.
    """

    key: int
    role: Role
    pid: int
    start_time: int
    command: str


class ContainmentError(CallError):
    """The tier that was asked for cannot be had on this machine."""


class DirectoryError(CallError):
    """The working directory cannot be entered. Told apart from the other reasons, as callers may have another one."""


class Process:
    """A process under the reaper: its own session and process group, `pid` being the number of both.

    Whoever got it from `Reaper.spawn` or `Reaper.adopt` must see to its end (`wait` or `kill_tree`; for an adopted one
    `kill_tree`, as only its parent learns its end), and then call `release`.
    """

    def __init__(self, reaper: Reaper, key: int, pid: int, *, adopted: bool = False) -> None:
        self.key = key
        """Unique in its reaper; `Reaper.running` names what belongs to it by this."""
        self.pid = pid
        self.returncode: int | None = None
        self.left: list[Survivor] = []
        """What it has left running; known once `wait` or `kill_tree` has returned."""
        self._adopted = adopted
        self._reaper = reaper
        self._ended = trio.Event()

    @property
    def marker(self) -> dict[str, str]:
        """The environment variable that tells, of a daemon which cut all ties, where it came from; spawning sets it."""
        return {wire.MARKER.decode(): self._reaper.marker(self.key).decode()}

    @property
    def ended(self) -> bool:
        """Whether it has ended, or is lost from sight."""
        return self._ended.is_set()

    async def wait(self) -> int:
        """Return its return code (negative: the signal that killed it) once it has ended.

        Raises CallError("unavailable") if the reaper was killed, and this process is lost from sight.
        Cancellation: nothing happens to the process; wait again.
        """
        await self._ended.wait()
        if self.returncode is None:
            raise reaper_lost()
        return self.returncode

    def signal_group(self, number: int) -> None:
        """Send a signal to its process group; nothing happens once it has ended."""
        if self.returncode is None:
            self._reaper.post(wire.SIGNAL, self.key, wire.NUMBER.pack(number))

    async def kill_tree(self, *, grace: float = GRACE) -> list[Survivor]:
        """End everything that descends from it: SIGTERM, `grace` seconds, SIGKILL.

        The tree is frozen while it is signalled, so that nothing escapes by forking. Returns what still runs (`left`,
        too): what had left the tree for a session of its own before, and what could not be killed within `KILL_WAIT`.
        Cancellation: waits all the same; bounded by `grace` + `KILL_WAIT`.
        """
        left = await self._reaper.end_tree(self.key, grace)
        if self._adopted:
            self._ended.set()
        with trio.CancelScope(shield=True), trio.move_on_after(KILL_WAIT):
            await self._ended.wait()
        self.left = left
        return left

    async def note_tree(self) -> None:
        """Before it ends by itself: what descends from it now belongs to its tree for good, whoever adopts it then.

        Raises CallError("unavailable") if the reaper was killed. Cancellation: perhaps nothing is noted.
        """
        await self._reaper.note_tree(self.key)

    def kill(self) -> bool:
        """End its tree with SIGKILL; waits for nothing. False if the reaper was killed, so that nothing will happen."""
        return self._reaper.post(wire.STOP, self.key, wire.NUMBER.pack(signal.SIGKILL))

    def end(self, returncode: int, left: list[Survivor]) -> None:
        """For the reaper's handle: it has ended."""
        self.returncode = returncode
        self.left = left
        self._ended.set()

    def lose(self) -> None:
        """For the reaper's handle: nobody will ever tell how it ended."""
        self._ended.set()

    def release(self) -> None:
        """Its output is not read any more: the reaper throws away what background jobs still write to it."""
        self._reaper.post(wire.RELEASE, self.key)

    def abandon(self) -> None:
        """`kill` and `release`."""
        self.kill()
        self.release()


def started_at(start_time: int) -> float:
    """The Unix time of a start time in clock ticks since boot."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start_time / os.sysconf("SC_CLK_TCK")


def reaper_lost() -> CallError:
    return CallError("unavailable", "the process that supervises all others was killed: start a new worker")
