"""Finds commands in Python code, where they are written out: in calls that start programs. Pure.

Shell escapes and magics are such calls, once IPython has made Python of a cell.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from rlm_worker.git_guard import shell

_STARTS: Final = re.compile(
    r"run|call|check_call|check_output|Popen|system|popen|getoutput|getstatusoutput|run_process|open_process"
    r"|create_subprocess_(shell|exec)|(posix_)?spawn\w*|exec[lv]\w*|bash"
)
"""Names of functions that start programs, whatever they are attributes of."""

_SHELL_MAGICS: Final = frozenset(("!", "bash", "sh", "sx", "system", "script"))

_UNKNOWN: Final = "unknown"
"""Stands for what is not written out."""


def refusal(source: str) -> str | None:
    """Why Python code is refused; None if it is not, or is no Python. Never raises."""
    if "git" not in source:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        for command in _commands(node) if isinstance(node, ast.Call) else ():
            if (reason := shell.refusal(command)) is not None:
                return reason
    return None


def _commands(call: ast.Call) -> Iterator[str | list[str]]:
    name: str = getattr(call.func, "attr", "") or getattr(call.func, "id", "")
    texts = [_text(argument) for argument in call.args]
    if name in ("run_line_magic", "run_cell_magic"):
        if len(texts) > 1 and texts[0] in _SHELL_MAGICS:
            yield texts[-1]
    elif _STARTS.fullmatch(name):
        given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg in ("args", "command"))]
        yield from ([_text(word) for word in words.elts] for words in given if isinstance(words, ast.List | ast.Tuple))
        if len(texts) > 1:
            yield texts  # create_subprocess_exec("git", ...)
        yield from (_text(argument) for argument in given[:1])


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    return _UNKNOWN
