"""Small calls: one after another, and 64 in flight."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from bench.lab import Lab, percentile, ratio
from bench.messages import IN_FLIGHT
from bench.report import Row

WIRE = ("tcp", "stdio")


def measure(lab: Lab) -> Iterator[Row]:
    yield from _sequential(lab, "64-byte call, both cores")
    with lab.one_core():
        yield from _sequential(lab, "64-byte call, one core")
    with lab.cores_apart():
        yield from _in_flight(lab)


def _sequential(lab: Lab, quantity: str) -> Iterator[Row]:
    turns = lab.turns("echo", 500, rounds=11)
    medians = {name: [median(turn.seconds) for turn in own] for name, own in turns.items()}
    for name, own in medians.items():
        row = Row(quantity, name, median(own) * 1e6, "µs", ratio(own, medians["lockstep"]), "lockstep")
        if name in WIRE:
            row.at_most = 1.5
        yield row
        if name == "tls":
            yield Row(quantity, name, row.value, "µs", ratio(own, medians["tcp"]), "tcp", at_most=1.8)
    for name, own_turns in turns.items():
        p99 = median(percentile(turn.seconds, 0.99) for turn in own_turns)
        yield Row(f"{quantity}, p99", name, p99 * 1e6, "µs")


def _in_flight(lab: Lab) -> Iterator[Row]:
    turns = lab.turns("flood", IN_FLIGHT * 100, rounds=9)
    rates = {name: [turn.count / turn.seconds[0] for turn in own] for name, own in turns.items()}
    for name, own in rates.items():
        row = Row("64 in flight", name, median(own), "calls/s", ratio(own, rates["blocking"]), "blocking")
        if name in WIRE:
            row.at_least = 0.2
        yield row
        if name in WIRE and "grpc" in rates:
            yield Row("64 in flight", name, row.value, "calls/s", ratio(own, rates["grpc"]), "grpc", at_least=10)
    for name, own_turns in turns.items():
        cpu = median(turn.cpu / turn.count for turn in own_turns)
        yield Row("CPU of both ends, 64 in flight", name, cpu * 1e6, "µs/call")
