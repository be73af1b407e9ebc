"""Agents' kernels: persistent IPython processes, forked from a warm host, fed with cells over a private socketpair.

Worker side: `kernels` (all of one session) → `lane` (one agent: order, timeouts, recovery) → `process` (one kernel) and
`output` (its pipe). `callbacks` says what cells may call, `budget` whose time counts; `supply` is where kernels come
from, `hosts` the process that forks them. `link` is the session that both ends speak. What runs beside user code is in
`inside`. The names are loaded when first used: the host lives in this package too, and needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_worker.kernel.callbacks import Callbacks
    from rlm_worker.kernel.cells import Cell
    from rlm_worker.kernel.kernels import Kernels, open_kernels
    from rlm_worker.kernel.supply import KernelHost, open_kernel_host

__all__ = ["Callbacks", "Cell", "KernelHost", "Kernels", "open_kernel_host", "open_kernels"]

_HOMES = {
    "Callbacks": "callbacks",
    "Cell": "cells",
    "KernelHost": "supply",
    "Kernels": "kernels",
    "open_kernel_host": "supply",
    "open_kernels": "kernels",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rlm_worker.kernel.{_HOMES[name]}"), name)
