"""A reaper for each test, workers behind each kind of link, and a look at the processes of this machine."""

from __future__ import annotations

import os
import select
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from worker.links import open_link

from rlm_worker.processes import Reaper, open_reaper, process_table

PATIENCE = 20.0


@pytest.fixture
async def reaper(request: pytest.FixtureRequest) -> AsyncIterator[Reaper]:
    """On the best tier this machine offers, or on the one that a test names as its parameter."""
    async with open_reaper(getattr(request, "param", None)) as reaper:
        yield reaper


@pytest.fixture
def running() -> Callable[[str], list[int]]:
    """Pids of living processes whose command line holds a text."""

    def find(text: str) -> list[int]:
        rows = process_table.table().values()
        return [
            row.pid
            for row in rows
            if row.alive and row.pid != os.getpid() and text.encode() in process_table.command_line(row.pid)
        ]

    return find


@pytest.fixture
def wait_for_end() -> Callable[[int], bool]:
    """Wait until a process has ended, whoever its parent is; False if it has not after a long time."""

    def wait(pid: int) -> bool:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([pidfd], [], [], PATIENCE)[0])
        finally:
            os.close(pidfd)

    return wait


@pytest.fixture
def end(wait_for_end: Callable[[int], bool]) -> Iterator[Callable[[int], None]]:
    """Kill a process that a test left running on purpose, at the latest with the test."""
    pids: list[int] = []

    def kill(pid: int) -> None:
        pids.append(pid)

    yield kill
    for pid in pids:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
        wait_for_end(pid)


@pytest.fixture
def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(Path.home()), "LANG": "C.UTF-8"}


@pytest.fixture(scope="module", params=["stdio", "tcp"])
def link(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str | None]]:
    """URL and token of a worker: each connection's own at the other end of pipes, one for the module behind TCP."""
    with open_link(request.param) as link:
        yield link
