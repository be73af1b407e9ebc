"""Documents whose code is run: a block is the file that its first line names, and what it prints may follow it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Block(NamedTuple):
    name: str
    text: str
    prints: str | None


def blocks(page: Path) -> dict[str, Block]:
    """The files of `page`, by name."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    files = {}
    for (language, text), (next_language, next_text) in zip(found, [*found[1:], ("", "")], strict=True):
        if language != "text":
            name = text.partition("\n")[0].removeprefix("# ")
            files[name] = Block(name, text, next_text if next_language == "text" else None)
    return files


def start(directory: Path, name: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Run the file `name` in `directory`, with warnings as errors."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", name, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def prints(directory: Path, name: str, *arguments: str, **variables: str) -> str:
    """What it prints, to stdout and nowhere else."""
    with start(directory, name, *arguments, **variables) as program:
        out, err = program.communicate(timeout=120)
    assert (program.returncode, err) == (0, "")
    return out
