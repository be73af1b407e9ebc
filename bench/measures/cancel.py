"""How soon a handler sees that it is no longer wanted."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from bench.lab import Lab
from bench.report import Row


def measure(lab: Lab) -> Iterator[Row]:
    for name, turns in lab.turns("cancel", 100, rounds=5).items():
        middle = median(median(turn.seconds) for turn in turns) * 1e6
        yield Row("cancel, seen by the handler", name, middle, "µs", at_most=1000 if name in ("tcp", "stdio") else None)
