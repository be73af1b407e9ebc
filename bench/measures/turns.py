"""A turn of the harness without model and tool: what the loop and its ledger cost, early and late in a long session.

Each turn is a reply that calls a tool which is not there, and the refusal that the model gets: two records. The
baseline writes as many bytes to a file, from a thread as well.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import trio

from bench.lab import Lab
from bench.report import Row
from rlm_harness.agent import Agent
from rlm_harness.events import Event, Usage
from rlm_harness.ledger.history import read_history
from rlm_harness.ledger.writer import create_ledger
from rlm_harness.model.interface import Message, Reply, ToolCall
from rlm_harness.prompts import Surroundings

TURNS = 10_000
"""They make 20,000 records."""

SAMPLE = 500
"""Turns at either end whose median is taken."""


class _Instant:
    """Notes when it is asked, and asks for the next turn at once."""

    name = "instant"

    def __init__(self, turns: int) -> None:
        self.asked: list[float] = []
        self._turns = turns

    async def reply(self, messages: Sequence[Message], tools: Any, emit: Any, tool_choice: str = "auto") -> Reply:
        self.asked.append(perf_counter())
        if len(self.asked) > self._turns:
            return Reply("Done.")
        call = ToolCall(f"call_{len(self.asked)}", "none", '{"command": "make test"}')
        return Reply("I try again.", [call], "tool_calls", Usage(len(messages) * 50, 20))


def measure(lab: Lab) -> Iterator[Row]:
    turns = 1000 if lab.quick else TURNS
    with tempfile.TemporaryDirectory() as directory:
        times, size, reading = trio.run(_session, Path(directory), turns)
        baseline = trio.run(_baseline, Path(directory), size // turns // 2, SAMPLE)
    early, late = median(times[:SAMPLE]), median(times[-SAMPLE:])
    yield Row("turn without model and tool", f"the first {SAMPLE}", early * 1e3, "ms", at_most=5)
    yield Row("turn without model and tool", f"behind {2 * turns} records", late * 1e3, "ms", at_most=5)
    yield Row("turn, growth", f"behind {2 * turns} records", late * 1e3, "ms", late / early, "the first", at_most=1.5)
    yield Row("turn without model and tool", "two writes", baseline * 1e3, "ms", early / baseline, "two writes")
    yield Row("ledger, read back", f"{2 * turns} records", reading * 1e3, "ms")


async def _session(directory: Path, turns: int) -> tuple[list[float], int, float]:
    """Seconds of each turn, bytes of the ledger, and seconds to read it."""
    model = _Instant(turns)
    async with create_ledger(directory) as ledger:
        tools: Any = _NoTools()
        surroundings = Surroundings("/w", "linux", "3.11")
        await Agent(model, tools, ledger, _ignore, surroundings=surroundings).prompt("go")
        start = perf_counter()
        read_history(ledger.directory)
        reading = perf_counter() - start
        times = [after - before for before, after in zip(model.asked, model.asked[1:], strict=False)]
        return times, ledger.size, reading


async def _baseline(directory: Path, size: int, turns: int) -> float:
    data, times = b"x" * size, []
    descriptor = os.open(directory / "baseline", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for _ in range(turns):
            start = perf_counter()
            for _ in range(2):
                await trio.to_thread.run_sync(os.write, descriptor, data)
            times.append(perf_counter() - start)
    finally:
        os.close(descriptor)
    return median(times)


class _NoTools:
    """None is ever run."""

    held = nullcontext


async def _ignore(event: Event) -> None:
    pass
