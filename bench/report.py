"""Rows of results, judged against the bounds the project set itself, as one table."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

HERE = Path(__file__).parent


class Row(msgspec.Struct):
    """One result. `judged` is what `at_most` or `at_least` bounds: the ratio if there is one, else the value."""

    quantity: str
    subject: str
    value: float
    unit: str
    ratio: float | None = None
    against: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def verdict(self) -> str:
        judged = self.value if self.ratio is None else self.ratio
        if self.at_most is not None:
            return "ok" if judged <= self.at_most else "MISSED"
        if self.at_least is not None:
            return "ok" if judged >= self.at_least else "MISSED"
        return ""

    def cells(self) -> list[str]:
        sign, bound = ("≤", self.at_most) if self.at_most is not None else ("≥", self.at_least)
        return [
            self.quantity,
            self.subject,
            f"{_number(self.value)} {self.unit}",
            "" if self.ratio is None else f"{_number(self.ratio)} × {self.against}",
            "" if bound is None else f"{sign} {bound:g}{f' {self.unit}' if self.ratio is None else ''}",
            self.verdict,
        ]


HEADINGS = ["what", "who", "value", "ratio", "bound", ""]


def table(rows: Sequence[Row]) -> str:
    """Markdown that reads well in a terminal too."""
    cells = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def write_results(rows: Sequence[Row]) -> Path:
    """bench/results.md: circumstances, table, and what `notes.md` says about it."""
    path = HERE / "results.md"
    versions = ", ".join(f"{name} {_version(name)}" for name in ("trio", "msgspec", "grpcio"))
    machine = f"{_processor()}, load {os.getloadavg()[2]:.1f}"  # of the last 15 minutes: 2 and more is not ours alone
    circumstances = f"{date.today()}, Python {platform.python_version()}, {versions}; {machine}."
    notes = (HERE / "notes.md").read_text()
    path.write_text(f"# Measured\n\n{circumstances} `make bench` writes this file.\n\n{table(rows)}\n\n{notes}")
    return path


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} × {models[0]}" if models else platform.machine()
