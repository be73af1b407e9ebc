"""Nurseries wrap what their body raises in a group; users of a context manager must not see how it is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_error() -> Iterator[None]:
    """Around one nursery: an exception that was alone in its group is raised as it is. Other groups pass."""
    try:
        yield
    except BaseExceptionGroup as group:
        alone, *others = group.exceptions
        if others:
            raise
        raise alone from alone.__cause__
