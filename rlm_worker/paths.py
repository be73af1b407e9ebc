"""Which text can be a path: asked before a path from outside is worked on, as some of that work is not linear."""

from __future__ import annotations

from rlm_wire.errors import CallError

PATH_LIMIT = 4096
"""Bytes: Linux takes no longer ones."""


def checked_path(path: str) -> str:
    """`path`, if it can be one. Raises CallError("invalid_argument")."""
    if not path or "\0" in path:
        raise CallError("invalid_argument", f"{path[:200]!r} is no path")
    if len(path) > PATH_LIMIT or len(path.encode("utf-8", "surrogateescape")) > PATH_LIMIT:
        raise CallError("invalid_argument", f"a path has {PATH_LIMIT} bytes at most: {path[:60]!r}... has more")
    return path
