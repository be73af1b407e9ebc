"""Starting, watching, reading and ending processes: everything of the workspace goes through here.

`supervision` and `handles` are the worker's side (Trio), `reaper` the small process under which all others live, `wire`
what the two say to each other. The reaper's own are `tiers` (how far it can contain processes here), `cgroups` and
`namespaces` (two ways to), `starting`, `commands` (what it started and what that has left), `stops` (what it is
ending), `tree` (what descends from what) and `process_table`. `capture` is how output is kept and `descriptors` what it
flows through. The names are loaded when first used, so that the reaper starts without importing Trio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_worker.processes.capture import Capture, open_capture
    from rlm_worker.processes.descriptors import memory_file, output_pipe
    from rlm_worker.processes.handles import ContainmentError, DirectoryError, Process, Running, Survivor, started_at
    from rlm_worker.processes.supervision import Reaper, open_reaper

__all__ = [
    "Capture",
    "ContainmentError",
    "DirectoryError",
    "Process",
    "Reaper",
    "Running",
    "Survivor",
    "memory_file",
    "open_capture",
    "open_reaper",
    "output_pipe",
    "started_at",
]

_MODULES = {
    "Capture": "capture",
    "open_capture": "capture",
    "memory_file": "descriptors",
    "output_pipe": "descriptors",
    "Reaper": "supervision",
    "open_reaper": "supervision",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rlm_worker.processes.{_MODULES.get(name, 'handles')}"), name)
