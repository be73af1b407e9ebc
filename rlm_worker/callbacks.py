"""Which methods the worker answers to cells itself, and which code each leads to. All others go to the harness.

A handler takes the agent's name, which the worker knows from the kernel's socket, and the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlm_wire.methods.ledger import LedgerChunk, ReadLedger
from rlm_worker.kernel import Callbacks

if TYPE_CHECKING:
    from rlm_worker.sessions import Session


def cell_callbacks(session: Session) -> Callbacks:
    """What the cells of `session` may call."""
    callbacks = Callbacks(session.harness)

    @callbacks.handle(ReadLedger)
    async def read_ledger(agent: str, request: ReadLedger) -> LedgerChunk:
        return await session.agent(agent).replica.read(request.start, request.size)

    return callbacks
