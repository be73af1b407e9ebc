"""A tool of a worker, in turn with the same thing done here and now."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from time import perf_counter

from bench.lab import ratio
from bench.report import Row

WARM_UP = 5
"""Rounds that do not count."""


async def in_turn(
    tool: Callable[[str], Awaitable[object]], text: str, here: Callable[[], object], rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of `tool(text)` and of `here()`, round by round."""
    ours, raw = [], []
    for _ in range(rounds + WARM_UP):
        start = perf_counter()
        await tool(text)
        ours.append(perf_counter() - start)
        start = perf_counter()
        here()
        raw.append(perf_counter() - start)
    return ours[WARM_UP:], raw[WARM_UP:]


def spawn_and_wait(command: str = "true") -> None:
    """What a worker's tools are compared to: bash, its output by one plain pipe."""
    subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)


def over(quantity: str, subject: str, ours: Sequence[float], raw: Sequence[float], at_most: float) -> Row:
    """By how many milliseconds it takes longer than the raw thing."""
    longer = median(a - b for a, b in zip(ours, raw, strict=True)) * 1e3
    return Row(quantity, _both(subject, ours, raw), longer, "ms", at_most=at_most)


def times(
    quantity: str, subject: str, against: str, ours: Sequence[float], raw: Sequence[float], at_most: float
) -> Row:
    """How many times as long it takes."""
    return Row(quantity, subject, median(ours) * 1e3, "ms", ratio(ours, raw), against, at_most=at_most)


def _both(subject: str, ours: Sequence[float], raw: Sequence[float]) -> str:
    return f"{subject}; {median(ours) * 1e3:.3g} against {median(raw) * 1e3:.3g} ms"
