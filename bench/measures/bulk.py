"""Large values and long streams: their speed, what they cost in memory, and what they do to a small call beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from bench.lab import Lab, Turn, percentile, ratio
from bench.messages import ITEM, LARGE
from bench.report import Row

ITEMS = 256 * 1024 * 1024 // ITEM
WIRE = ("tcp", "stdio")
GROWTH = 48  # MiB


def measure(lab: Lab) -> Iterator[Row]:
    yield from _speed(lab, "15 MiB echo", "large", 4, lambda turn: 2 * len(LARGE) / median(turn.seconds))
    yield from _speed(lab, "256 MiB stream", "stream", ITEMS, lambda turn: turn.count * ITEM / turn.seconds[0])
    for name, turns in lab.turns("beside", ITEMS, rounds=5).items():
        p99 = median(percentile(turn.seconds, 0.99) for turn in turns) * 1e3
        middle = median(median(turn.seconds) for turn in turns) * 1e3
        yield Row("small call beside the stream, median", name, middle, "ms")
        yield Row("small call beside the stream, p99", name, p99, "ms", at_most=3 if name in WIRE else None)


def _speed(lab: Lab, quantity: str, measurement: str, count: int, speed: Callable[[Turn], float]) -> Iterator[Row]:
    """Megabytes a second (of an echo: there and back), and growth from before the first to the end of the last."""
    for subject in lab.subjects.values():
        subject.mark_memory()
    turns = lab.turns(measurement, count, rounds=7)
    rates = {name: [speed(turn) / 1e6 for turn in own] for name, own in turns.items()}
    for name, own in rates.items():
        row = Row(quantity, name, median(own), "MB/s", ratio(own, rates["lockstep"]), "lockstep")
        if name in WIRE:
            row.at_least = 1
        yield row
    for name in rates:
        growth = lab.subjects[name].growth()
        yield Row(f"{quantity}, growth", name, growth, "MiB", at_most=GROWTH if name in WIRE else None)
