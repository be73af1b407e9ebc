"""Many at once: what 1,000 sessions cost a worker and a harness, and whether busy ones get their fair share."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter

import trio

from bench.lab import Lab, percentile
from bench.report import Row
from rlm_harness.workspace import AgentTools, Workspace

IDLE = 1000
BUSY = 200
QUIET = 20
SECONDS = 5.0


def measure(lab: Lab) -> Iterator[Row]:
    for case in (_idle, _busy, _flooded):
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", "rlm_worker", "serve", "--unix", f"{directory}/socket"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=directory) as process:
                assert process.stdout is not None
                process.stdout.readline()
                yield from trio.run(case, f"unix:{directory}/socket", process.pid)
                process.terminate()


async def _idle(url: str, worker: int) -> list[Row]:
    """Workspaces of which each has been opened and does nothing."""
    async with Workspace.connect(url):
        pass
    children = _children(worker)
    before = _resident(worker), _resident("self")
    async with _workspaces(url, IDLE):
        theirs, ours = (_resident(worker) - before[0]) / IDLE, (_resident("self") - before[1]) / IDLE
        started = _children(worker) - children
    where = f"{IDLE} idle over a Unix socket"
    return [
        Row("memory of a session, worker", where, theirs, "KiB", at_most=100),
        Row("memory of a workspace, harness", where, ours, "KiB", at_most=100),
        Row("processes started for them", where, started, "processes", at_most=0),
    ]


async def _busy(url: str, worker: int) -> list[Row]:
    """Agents that call without a pause: how many calls each of them gets answered."""
    async with _agents(url, BUSY) as agents:
        answered = [0] * BUSY

        async def call(place: int) -> None:
            for answered[place] in count():
                await agents[place].inspect()

        await _for_a_while([partial(call, place) for place in range(BUSY)])
    where = f"{BUSY} busy over a Unix socket"
    return [
        Row("calls answered, all together", where, sum(answered) / SECONDS, "calls/s"),
        Row("the least that one got, of the median", where, min(answered) / median(answered), "parts", at_least=0.8),
    ]


async def _flooded(url: str, worker: int) -> list[Row]:
    """Calls one after another of some, and the same while one more, in another process, has thousands in flight."""
    rows = []
    async with _agents(url, QUIET) as agents:
        for what, flooding in (("call", False), ("call beside a flood", True)):
            took: list[float] = []

            async def call(agent: AgentTools, took: list[float] = took) -> None:
                while True:
                    start = perf_counter()
                    await agent.inspect()
                    took.append(perf_counter() - start)

            async with _flood(url) if flooding else nullcontext():
                await _for_a_while([partial(call, agent) for agent in agents])
            where = f"{QUIET} sessions, one call each"
            rows.append(Row(f"{what}, median", where, median(took) * 1e3, "ms"))
            bound = 100 if flooding else None
            rows.append(Row(f"{what}, p99", where, percentile(took, 0.99) * 1e3, "ms", at_most=bound))
    return rows


@asynccontextmanager
async def _flood(url: str) -> AsyncIterator[None]:
    with subprocess.Popen([sys.executable, "-m", "bench.subjects.flood", url], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        await trio.to_thread.run_sync(process.stdout.readline)
        yield
        process.terminate()


async def _for_a_while(functions: Sequence[Callable[[], Awaitable[object]]]) -> None:
    with trio.move_on_after(SECONDS):
        async with trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)


@asynccontextmanager
async def _workspaces(url: str, number: int) -> AsyncIterator[list[Workspace]]:
    """Opened and closed many at a time; no more, or the listening socket's queue is full."""
    async with trio.open_nursery() as nursery:
        limiter, leave, opened = trio.Semaphore(50), trio.Event(), list[Workspace]()

        async def hold(*, task_status: trio.TaskStatus[None]) -> None:
            async with Workspace.connect(url) as workspace:
                opened.append(workspace)
                task_status.started()
                await leave.wait()

        async def open_one() -> None:
            async with limiter:
                await nursery.start(hold)

        async with trio.open_nursery() as opening:
            for _ in range(number):
                opening.start_soon(open_one)
        yield opened
        leave.set()


@asynccontextmanager
async def _agents(url: str, number: int) -> AsyncIterator[list[AgentTools]]:
    """An agent in each of so many workspaces."""
    async with _workspaces(url, number) as workspaces, AsyncExitStack() as stack:
        yield [await stack.enter_async_context(workspace.agent()) for workspace in workspaces]


def _resident(process: int | str) -> int:
    """KiB."""
    return int(Path(f"/proc/{process}/smaps_rollup").read_text().split("Rss:")[1].split()[0])


def _children(process: int) -> int:
    return len(Path(f"/proc/{process}/task/{process}/children").read_text().split())
