"""Starting, watching, reading and ending processes: everything of the workspace goes through here.

`supervision` is the worker's side (Trio), `reaper` the small process under which all others live, `wire` what the two
say to each other, `process_table` what `/proc` knows, `capture` how output is kept. The names are loaded when first
used, so that the reaper, which lives in this package too, starts without importing Trio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_worker.processes.capture import Capture, open_capture
    from rlm_worker.processes.supervision import Process, Reaper, Survivor, open_reaper

__all__ = ["Capture", "Process", "Reaper", "Survivor", "open_capture", "open_reaper"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "capture" if name in {"Capture", "open_capture"} else "supervision"
    return getattr(import_module(f"rlm_worker.processes.{module}"), name)
