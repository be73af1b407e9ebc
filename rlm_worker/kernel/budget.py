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
        self.scope = trio.CancelScope(deadline=trio.current_time() + (math.inf if timeout is None else timeout))
        """To be entered around the wait for the cell: cancelled when the time is used up."""
        self._waits = 0
        self._left = math.inf

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Around a wait that is not the cell's own doing."""
        if self._waits == 0:
            self._left = self.scope.deadline - trio.current_time()
            self.scope.deadline = math.inf
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                self.scope.deadline = trio.current_time() + self._left
