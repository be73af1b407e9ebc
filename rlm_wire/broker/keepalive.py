"""Finding out that the other side is gone although nothing says so. Spec §4.3.

Silence is counted in rounds of our own, not read off a clock: a process that was stopped and goes on, or a machine
that slept, finds its peer's frames waiting and must not take its own absence for the peer's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from rlm_wire.broker.patience import Patience
from rlm_wire.errors import TransportError

if TYPE_CHECKING:
    from rlm_wire.broker.line import Line


async def keep_alive(line: Line, patience: Patience) -> None:
    """Ping when idle, until the peer has been silent for too long: raises TransportError, and ends in no other way.

    Cancellation: at once.
    """
    silent = 0
    heard = line.batches
    while silent < patience.rounds:
        if silent:
            line.ping(0)
        await trio.sleep(patience.idle)
        silent = silent + 1 if line.batches == heard else 0
        heard = line.batches
    raise TransportError(f"nothing was heard from the peer for {patience.idle * patience.rounds:.0f} s")
