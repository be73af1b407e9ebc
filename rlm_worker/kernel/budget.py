"""How long a cell may run: a deadline that stands still while the cell waits for somebody else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Budget:
    """`timeout` seconds of a cell's own time (None: no limit), counted from when this is made.

    Waits of the cell's threads and tasks may overlap: the time of all of them together is not counted, once.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = math.inf if timeout is None else timeout
        self.scope = trio.CancelScope(deadline=trio.current_time() + self.timeout)
        """To be entered around the wait for the cell: cancelled when the time is used up."""
        self._left = math.inf
        self._ends: list[float] = []

    @contextmanager
    def paused(self, at_most: float = math.inf) -> Iterator[None]:
        """Around a wait that is not the cell's own doing. One of more than `at_most` seconds uses the time up."""
        end = trio.current_time() + at_most
        if not self._ends:
            self._left = self.scope.deadline - trio.current_time()
        self._ends.append(end)
        self.scope.deadline = min(self._ends)
        try:
            yield
        finally:
            self._ends.remove(end)
            self.scope.deadline = min(self._ends, default=trio.current_time() + self._left)
