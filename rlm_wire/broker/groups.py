"""Nurseries wrap what their body raises in a group; users of a context manager must not see how it is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

Error = TypeVar("Error", bound=Exception)


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


def first_of(group: ExceptionGroup[Error]) -> Error:
    """The first exception in `group`, for whoever can be told one only."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, ExceptionGroup) else first
