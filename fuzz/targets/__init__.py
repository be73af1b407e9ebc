"""One module a target. Each has `run(data)`, which raises if the code under test breaks a promise, and `REACH`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

NAMES: Final = ("framing", "codec", "handshake", "connection", "parameters")


def target(name: str) -> ModuleType:
    """The module of target `name`, one of NAMES. Only it is imported: the fuzzer instruments what it imports."""
    return importlib.import_module(f"{__name__}.{name}")
