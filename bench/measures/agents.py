"""A tree of agents: how soon it is at work, and how much memory the harness has when all are idle."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from typing import Any

from bench.lab import Lab
from bench.report import Row

CHILDREN = 64


def measure(lab: Lab) -> Iterator[Row]:
    rounds = 1 if lab.quick else 5
    many = [_tree(CHILDREN) for _ in range(rounds)]
    one = [_tree(1) for _ in range(rounds)]
    seconds = median(run["seconds"] for run in many)
    yield Row(f"{CHILDREN} children to their first model call", "stdio", seconds, "s", at_most=5)
    mib, alone = median(run["mib"] for run in many), median(run["mib"] for run in one)
    yield Row(f"harness with {CHILDREN} idle agents", "stdio", mib, "MiB", at_most=150)
    yield Row("  the same", "stdio", mib, "MiB", mib / alone, "with one agent")


def _tree(children: int) -> Any:
    command = [sys.executable, "-m", "bench.subjects.tree", str(children)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
