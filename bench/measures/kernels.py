"""Kernels: how soon there is one, and 64; their own memory; commands in cells beside the plain spawn; their end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import trio

from bench.beside import in_turn, over, spawn_and_wait, times
from bench.lab import Lab
from bench.report import Row
from rlm_harness.workspace import AgentTools, Workspace, local_worker_url

MANY = 64
FLOOD = "seq 1 2000000"

NO_FIXED_WAIT = 50
"""Milliseconds: less than anybody waits who waits for no event. Jupyter's own takes 112."""


def measure(lab: Lab) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["IPYTHONDIR"] = directory
        yield from trio.run(_kernels, directory, lab.quick)


async def _kernels(directory: str, quick: bool) -> list[Row]:
    async with Workspace.connect(local_worker_url(), cwd=directory) as workspace, workspace.agent() as agent:
        first = await _seconds_of_cell(agent)
        return [
            Row("kernel and its first cell, the worker's first", "stdio", first * 1e3, "ms", at_most=1000),
            *await _one_by_one(workspace, 10 if quick else 40),
            *await _all_at_once(workspace, 1 if quick else 5),
            over(
                "!true in a cell, over spawning and waiting",
                "stdio",
                *await in_turn(agent.ipython, "!true", spawn_and_wait, 20 if quick else 100),
                at_most=3,
            ),
            times(
                f"!{FLOOD} in a cell",
                "stdio",
                "plain pipe",
                *await in_turn(agent.ipython, f"!{FLOOD}", partial(spawn_and_wait, FLOOD), 3 if quick else 15),
                at_most=2,
            ),
        ]


async def _one_by_one(workspace: Workspace, rounds: int) -> list[Row]:
    """Fresh agents, one after another: without a rest between them, in which a spare kernel could be made."""
    ready, closing = [], []
    for _ in range(rounds):
        async with AsyncExitStack() as stack:
            agent = await stack.enter_async_context(workspace.agent())
            ready.append(await _seconds_of_cell(agent))
            start = perf_counter()
        closing.append(perf_counter() - start)
    return [
        Row("kernel and its first cell, the next ones", "stdio", median(ready) * 1e3, "ms", at_most=20),
        Row("closing an agent and its kernel", "stdio", median(closing) * 1e3, "ms", at_most=NO_FIXED_WAIT),
    ]


async def _all_at_once(workspace: Workspace, rounds: int) -> list[Row]:
    seconds, private, closing = [], [], []
    for _ in range(rounds):
        async with AsyncExitStack() as stack:
            agents = [await stack.enter_async_context(workspace.agent()) for _ in range(MANY)]
            start = perf_counter()
            async with trio.open_nursery() as nursery:
                for agent in agents:
                    nursery.start_soon(_seconds_of_cell, agent)
            seconds.append(perf_counter() - start)
            names = {agent.name for agent in agents}
            private += [
                _private_mib(process.pid)
                for process in (await workspace.processes()).processes
                if process.kind == "kernel" and process.agent in names
            ]
            start = perf_counter()
        closing.append(perf_counter() - start)
    largest = f"stdio; the largest {max(private):.3g} MiB"
    return [
        Row(f"{MANY} kernels and their first cells", "stdio", median(seconds), "s", at_most=2),
        Row("private memory of a kernel after a cell", largest, median(private), "MiB", at_most=8),
        Row(f"closing {MANY} agents one by one", "stdio", median(closing), "s"),
    ]


async def _seconds_of_cell(agent: AgentTools) -> float:
    start = perf_counter()
    result = await agent.ipython("1+1")
    assert result.result == "2", result
    return perf_counter() - start


def _private_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
