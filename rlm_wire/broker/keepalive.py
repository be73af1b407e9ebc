"""Finding out that the other side is gone although nothing says so. Spec §4.3.

Silence is counted in rounds of our own, not read off a clock: a process that was stopped and goes on, or a machine
that slept, finds its peer's frames waiting and must not take its own absence for the peer's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from rlm_wire.errors import SessionLost, TransportError

if TYPE_CHECKING:
    from rlm_wire.broker.peer import Peer

IDLE: Final = 10.0
"""Seconds without a byte from the peer after which it is asked for one."""

SILENT_ROUNDS: Final = 3
"""Rounds of IDLE without a byte after which the peer is dead."""


async def keep_alive(peer: Peer) -> None:
    """Ping when idle, and end the session of a peer that stays silent. Runs until the session has ended."""
    silent = 0
    heard = peer.batches
    while True:
        with trio.move_on_after(IDLE):
            await peer.wait_closed()
            return
        if peer.batches != heard:
            heard, silent = peer.batches, 0
            continue
        silent += 1
        if silent >= SILENT_ROUNDS:
            peer.lose(TransportError(f"nothing was heard from the peer for {IDLE * SILENT_ROUNDS:.0f} s"))
            return
        try:
            peer.send_ping(0)
        except SessionLost:
            return
