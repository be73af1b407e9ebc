"""What a skill may be called: a Python name that means nothing else in a cell. Pure."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from typing import Final

from rlm_harness.secrets import UserError
from rlm_wire.methods.skills import LocalSkill

NAME_LIMIT: Final = 96
"""Characters: a name is typed by a model, and stands in every traceback."""

LOCAL: Final[tuple[LocalSkill, ...]] = ("bash", "edit", "fetch")
"""Skills of the worker's own."""

_CELLS_OWN: Final = {"rlm", "get_ipython", "In", "Out", "exit", "quit", "display"}


def identifier(*parts: str) -> str:
    """`parts` joined by underscores, and whatever Python would not take in a name replaced by one."""
    name = re.sub(r"[^0-9A-Za-z_]+", "_", "_".join(part.strip() for part in parts))
    return f"_{name}" if name[:1].isdigit() else name


def check_name(name: str, what: str) -> None:
    """Raises UserError, which names `what` it is for, if a skill cannot be called `name`."""
    meaning = (
        "is a keyword of Python"
        if keyword.iskeyword(name)
        else "is a builtin of Python"
        if hasattr(builtins, name)
        else "is a module of Python's standard library"
        if name in sys.stdlib_module_names
        else "has its own meaning in cells"
        if name in _CELLS_OWN
        else f"is longer than {NAME_LIMIT} characters"
        if len(name) > NAME_LIMIT
        else ""
    )
    if not name.strip("_"):
        raise UserError(f"{what} has no name that Python can take")
    if meaning:
        raise UserError(f"{what} would be called {name[:NAME_LIMIT]!r} in cells, which {meaning}: give it another name")
