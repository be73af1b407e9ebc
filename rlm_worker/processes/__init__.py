"""Starting, watching, reading and ending processes: everything of the workspace goes through here.

`supervision` is the worker's side (Trio), `reaper` the small process under which all others live, `wire` what the two
say to each other, `tree` and `process_table` what the reaper knows of other processes; `capture` is how output is kept
and `descriptors` what it flows through. The names are loaded when first used, so that the reaper, whose code lives in
this package too, starts without importing Trio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_worker.processes.capture import Capture, open_capture
    from rlm_worker.processes.descriptors import memory_file, output_pipe
    from rlm_worker.processes.supervision import DirectoryError, Process, Reaper, Survivor, open_reaper

__all__ = [
    "Capture",
    "DirectoryError",
    "Process",
    "Reaper",
    "Survivor",
    "memory_file",
    "open_capture",
    "open_reaper",
    "output_pipe",
]

_MODULES = {"Capture": "capture", "open_capture": "capture", "memory_file": "descriptors", "output_pipe": "descriptors"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rlm_worker.processes.{_MODULES.get(name, 'supervision')}"), name)
