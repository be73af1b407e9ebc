"""How long silence is borne, and how often a lost connection is tried again: settings, no behaviour."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. How long a session outlives its connection is the `lease` of `Limits`: both sides know it."""

    idle: float = 10.0
    """Without a byte from the peer for so long, it is asked for one."""

    rounds: int = 3
    """Rounds of `idle` without a byte after which the peer is taken for dead, and the connection for lost."""

    first_pause: float = 0.1
    """Before the second attempt to reconnect; the first comes at once, and each pause is twice the one before."""

    longest_pause: float = 5.0

    jitter: Callable[[], float] = random.random
    """Gives numbers from 0 to 1: a pause is cut by up to half, so that many clients do not come back as one."""

    @classmethod
    def bearing(cls, silence: float) -> Patience:
        """The default but for how long silence is borne, in seconds."""
        return cls(idle=silence / 3, rounds=3)

    def pauses(self) -> Iterator[float]:
        """Seconds to wait before each attempt to reconnect, without end."""
        yield 0.0
        pause = self.first_pause
        while True:
            yield pause * (1 - self.jitter() / 2)
            pause = min(pause * 2, self.longest_pause)
