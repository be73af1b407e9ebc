"""Runs subjects turn by turn: A, B, A, B, so that what else the machine does meets all of them alike.

Beside its own seconds, each turn is known by the CPU time and the growth of both processes, seen from outside.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.subjects import ASIDE, NAMES


class Turn(msgspec.Struct):
    """One measurement of one subject: `count` as asked, `seconds` as the client gave them, `cpu` of both processes."""

    count: int
    seconds: list[float]
    cpu: float


class Subject:
    """A client process and its server process. `offers` are the measurements it knows."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process
        hello = self._read()
        self.pids: list[int] = hello["pids"]
        self.offers: list[str] = hello["offers"]
        self._before = [0, 0]

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the client of {self.name!r} failed")
        return json.loads(line)

    def ask(self, measurement: str, count: int) -> Turn:
        assert self._process.stdin is not None
        cpu = self._cpu()
        self._process.stdin.write(json.dumps([measurement, count]) + "\n")
        self._process.stdin.flush()
        return Turn(count, self._read(), self._cpu() - cpu)

    def _cpu(self) -> float:
        clocks = [(~pid << 3) | 2 for pid in self.pids]  # how Linux names the CPU clock of another process
        return sum(map(time.clock_gettime, clocks))

    def pin(self, client: set[int], server: set[int]) -> None:
        for pid, cores in zip(self.pids, (client, server), strict=True):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)

    def mark_memory(self) -> None:
        """From here on `growth` counts."""
        for pid in self.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        self._before = [_memory(pid, "VmRSS") for pid in self.pids]

    def growth(self) -> float:
        """MiB by which either process had grown at its peak, the larger of both."""
        peaks = [_memory(pid, "VmHWM") for pid in self.pids]
        return max(peak - before for peak, before in zip(peaks, self._before, strict=True)) / 1024


def _memory(pid: int, field: str) -> int:
    """KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


class Lab:
    """All subjects, running. `quick`: few rounds, for a first look."""

    def __init__(self, subjects: dict[str, Subject], quick: bool) -> None:
        self.subjects = subjects
        self.quick = quick

    def turns(self, measurement: str, count: int, rounds: int, names: Sequence[str] = NAMES) -> dict[str, list[Turn]]:
        """`rounds` turns of each subject that can, interleaved, after one smaller turn to warm up. By name."""
        if self.quick:
            count, rounds = max(count // 4, 1), 3
        subjects = [s for s in self.subjects.values() if s.name in names and measurement in s.offers]
        for subject in subjects:
            subject.ask(measurement, max(count // 4, 1))
        turns: dict[str, list[Turn]] = {subject.name: [] for subject in subjects}
        for _ in range(rounds):
            for subject in subjects:
                turns[subject.name].append(subject.ask(measurement, count))
        return turns

    def one_core(self) -> AbstractContextManager[None]:
        """Both processes of each subject on one core: a halted core takes longer to wake than a call takes."""
        cores = os.sched_getaffinity(0)
        return self._pinned({max(cores)}, {max(cores)})

    def cores_apart(self) -> AbstractContextManager[None]:
        """Each process of a subject on a core of its own: else it is chance whether both ends work at once."""
        cores = os.sched_getaffinity(0)
        return self._pinned({max(cores)}, {min(cores)})

    @contextmanager
    def _pinned(self, client: set[int], server: set[int]) -> Iterator[None]:
        cores = os.sched_getaffinity(0)
        for subject in self.subjects.values():
            subject.pin(client, server)
        yield
        for subject in self.subjects.values():
            subject.pin(cores, cores)


@contextmanager
def open_lab(quick: bool) -> Iterator[Lab]:
    """Start what can be started."""
    with ExitStack() as stack:
        subjects = {}
        for name in (*NAMES, *ASIDE):
            if name == "grpc" and importlib.util.find_spec("grpc") is None:
                continue
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "bench.subjects", "drive", name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            subjects[name] = Subject(name, process)
        yield Lab(subjects, quick)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios round by round: what slowed a whole round down does not count."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]
