"""A session's background without a wire: for tests of jobs, services and watches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from rlm_wire.methods.events import Event
from rlm_wire.methods.jobs import Job, JobResult, RunJob
from rlm_worker.background import OPERATIONS, Background, open_background
from rlm_worker.processes import Reaper, process_table
from rlm_worker.roster import Roster

T = TypeVar("T")
AGENT = "agent-1"
NO_PATHS = ("a\0b", "x" * 4097, "ä" * 2049, "/" * 4097)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    row = process_table.row(pid)
    return row is not None and row.alive


class Place:
    """Where the commands of a test run: its own directory."""

    def __init__(self, reaper: Reaper, directory: Path, env: dict[str, str]) -> None:
        self.reaper = reaper
        self.roster = Roster(reaper)
        self.cwd = str(directory)
        self.env = env

    def fallback_directory(self) -> str:
        return "/"

    def check_command(self, agent: str, command: str) -> None:
        pass


class Desk:
    """Requests of one agent to a background, and the events it published."""

    def __init__(self, background: Background, place: Place) -> None:
        self.background = background
        self.place = place
        self.events: list[Event] = []
        self._more = trio.Event()

    async def ask(self, request: Any) -> Any:
        return await OPERATIONS[type(request)](self.background)(request)

    async def start(self, command: str | list[str], **options: Any) -> str:
        """The id of a job that runs on."""
        job: Job = await self.ask(RunJob(AGENT, command, yield_after=0, **options))
        return job.id

    async def run(self, command: str | list[str], **options: Any) -> Job:
        """A job that has ended."""
        job: Job = await self.ask(RunJob(AGENT, command, **{"yield_after": 60, **options}))
        assert not job.running
        return job

    async def result(self, job: str) -> Job:
        result: Job = await self.ask(JobResult(AGENT, job))
        return result

    async def record(self, event: Event) -> None:
        await trio.lowlevel.checkpoint()
        self.events.append(event)
        self._more.set()
        self._more = trio.Event()

    async def wait_for(self, kind: type[T], wanted: Callable[[T], object] = lambda _: True) -> T:
        """The first event content of that kind that fits."""
        while True:
            for event in self.events:
                if isinstance(event.content, kind) and wanted(event.content):
                    return event.content
            await self._more.wait()


@asynccontextmanager
async def open_desk(reaper: Reaper, directory: Path, env: dict[str, str]) -> AsyncIterator[Desk]:
    place = Place(reaper, directory, env)
    async with trio.open_nursery() as nursery, open_background(place) as background:
        desk = Desk(background, place)
        nursery.start_soon(background.events.follow, desk.record)
        yield desk
        nursery.cancel_scope.cancel()
