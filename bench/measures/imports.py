"""What an import costs over an interpreter that does nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter

from bench.lab import Lab
from bench.report import Row

PROGRAMS = {
    "bare": "pass",
    "import rlm_wire": "import rlm_wire",
    "import trio, msgspec": "import trio, msgspec",
    "from rlm_wire import connect": "from rlm_wire import connect",
}


def measure(lab: Lab) -> Iterator[Row]:
    times: dict[str, list[float]] = {program: [] for program in PROGRAMS}
    for _ in range(5 if lab.quick else 15):
        for program, code in PROGRAMS.items():
            start = perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times[program].append((perf_counter() - start) * 1e3)
    bare = times.pop("bare")
    for program, own in times.items():
        over = median(a - b for a, b in zip(own, bare, strict=True))
        bound = 25 if program == "import rlm_wire" else None
        yield Row("import, over a bare interpreter", program, over, "ms", at_most=bound)
