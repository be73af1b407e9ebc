"""Running Trio so that a seed decides everything, the order of tasks included."""

# ruff: noqa: SLF001 - Trio has no public way; Hypothesis takes this one too

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
from trio.testing import MockClock

T = TypeVar("T")


def run_seeded(seed: int, function: Callable[[random.Random], Awaitable[T]]) -> T:
    """`trio.run` of `function`, with random numbers of that seed, on a virtual clock that jumps when all wait."""
    scheduler: Any = trio._core._run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    try:
        return trio.run(function, random.Random(seed), clock=MockClock(autojump_threshold=0))  # noqa: S311
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        scheduler._r.setstate(before[1])
