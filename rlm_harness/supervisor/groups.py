"""What many agents meet together is told once: a display that nobody reads is met by each that shows something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_of_a_kind() -> Iterator[None]:
    """Around one nursery: if all exceptions in its group are of one class, the first is raised as it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        first, *others = _leaves(group)
        if any(type(other) is not type(first) for other in others):
            raise
        raise first from first.__cause__


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
