"""Nurseries wrap what their body raises in a group; users of a context manager must not see how it is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


@contextmanager
def one_error() -> Iterator[None]:
    """Around one nursery: an exception that was alone in its group is raised as it is. Other groups pass.

    Cancelled beside other exceptions says nothing that they do not, and several of it say no more than one.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        cancelled = [error for error in group.exceptions if isinstance(error, trio.Cancelled)]
        alone, *others = [error for error in group.exceptions if error not in cancelled] or cancelled[:1]
        if others:
            raise
        raise alone from alone.__cause__
