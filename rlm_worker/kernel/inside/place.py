"""Where a kernel works: its directory and its environment, taken on before its first cell."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path


def enter(cwd: str, env: dict[str, str]) -> str | None:
    """Take on the agent's environment and directory; if that is gone, the nearest above it, and say so."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    tempfile.tempdir = None
    sys.path[:0] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    for directory in (Path(cwd), *Path(cwd).parents):
        try:
            os.chdir(directory)
        except OSError:
            continue
        return None if directory == Path(cwd) else f"The directory {cwd} is not there: cells run in {directory}."
    return f"The directory {cwd} cannot be entered, nor can any above it."
