"""Plots reach the model: matplotlib's inline backend, chosen when a cell first imports matplotlib.

A kernel that never plots pays nothing. A backend the user chose (MPLBACKEND, a matplotlibrc, `matplotlib.use`) wins.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from rlm_worker.kernel.inside.shell import KernelShell

INLINE = "module://matplotlib_inline.backend_inline"


class _Matplotlib(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for matplotlib's loader once: loads it, then sets its default backend."""

    def __init__(self) -> None:
        self._loader: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "matplotlib":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if not os.environ.get("MPLBACKEND"):
            module.rcParams["backend"] = INLINE


def _png(figure: Any) -> Any:
    from IPython.core.pylabtools import print_figure

    return print_figure(figure, "png")  # type: ignore[no-untyped-call]


def show_inline(shell: KernelShell) -> None:
    """From now on, matplotlib draws into the cell's displays, and a figure made without pyplot is a picture too."""
    sys.meta_path.insert(0, _Matplotlib())
    shell.display_formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", _png)
