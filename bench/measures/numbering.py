"""What it costs that sessions outlive connections: numbering, acknowledging, pinging."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from bench.lab import Lab, ratio
from bench.messages import IN_FLIGHT, ITEM
from bench.report import Row

NAMES = ("tcp", "uncounted")
ITEMS = 256 * 1024 * 1024 // ITEM


def measure(lab: Lab) -> Iterator[Row]:
    yield _rate(lab, "call after call, with all against without numbering", "echo", 500)
    yield _rate(lab, "64 in flight, likewise", "flood", IN_FLIGHT * 100)
    yield _rate(lab, "stream of 64 KiB items, likewise", "stream", ITEMS)


def _rate(lab: Lab, quantity: str, measurement: str, count: int) -> Row:
    turns = lab.turns(measurement, count, rounds=21, names=NAMES)
    rates = {name: [turn.count / sum(turn.seconds) for turn in own] for name, own in turns.items()}
    return Row(
        quantity, "tcp", median(rates["tcp"]), "per second", ratio(rates["tcp"], rates["uncounted"]), "without",
        at_least=0.9,
    )  # fmt: skip
