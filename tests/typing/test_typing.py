"""Both type checkers see the API as `examples.py` says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent / "examples.py"
ROOT = EXAMPLES.parents[2]
BIN = Path(sys.executable).parent


def _expected() -> tuple[dict[int, str], set[int]]:
    """Types revealed, by line, and lines with an error."""
    reveals, errors = {}, set()
    for number, line in enumerate(EXAMPLES.read_text().splitlines(), start=1):
        code, _, comment = line.rpartition("  # ")
        if "reveal_type(" in code:
            reveals[number] = comment
        elif comment == "error":
            errors.add(number)
    return reveals, errors


def _plain(type_: str) -> str:
    """Without module names: checkers differ in them."""
    return re.sub(r"\b[\w.]+\.", "", type_)


def test_the_examples_say_something() -> None:
    reveals, errors = _expected()
    assert len(reveals) > 10
    assert len(errors) > 8


def test_mypy_agrees(tmp_path: Path) -> None:
    command = [
        BIN / "mypy",
        "--strict",
        "--show-error-codes",
        "--no-error-summary",
        f"--cache-dir={tmp_path}",
        EXAMPLES,
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not run.stderr, run.stderr
    reveals, errors = {}, set()
    for line in run.stdout.splitlines():
        number = int(line.split(":")[1])
        if revealed := re.search(r'Revealed type is "(.*)"', line):
            reveals[number] = _plain(revealed[1])
        elif ": error:" in line:
            errors.add(number)
    assert (reveals, errors) == _expected(), run.stdout


def test_pyright_agrees() -> None:
    command = [BIN / "pyright", "--outputjson", "--pythonpath", sys.executable, EXAMPLES]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    reveals, errors = {}, set()
    for found in json.loads(run.stdout)["generalDiagnostics"]:
        number = found["range"]["start"]["line"] + 1
        if revealed := re.search(r'Type of ".*" is "(.*)"', found["message"], re.DOTALL):
            reveals[number] = _plain(revealed[1])
        elif found["severity"] == "error":
            errors.add(number)
    assert (reveals, errors) == _expected(), run.stdout
