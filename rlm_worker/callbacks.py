"""Which methods the worker answers to cells itself, and which code each leads to. All others go to the harness.

A handler takes the agent's name, which the worker knows from the kernel's socket, and the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rlm_wire.methods.ledger import LedgerChunk, ReadLedger
from rlm_worker.background import OPERATIONS, Operation
from rlm_worker.kernel import Callbacks

if TYPE_CHECKING:
    from rlm_worker.sessions import Session


def cell_callbacks(session: Session) -> Callbacks:
    """What the cells of `session` may call."""
    callbacks = Callbacks(session.harness)
    for request, operation in OPERATIONS.items():
        callbacks.handle(request)(_stamped(operation(session.background)))

    @callbacks.handle(ReadLedger)
    async def read_ledger(agent: str, request: ReadLedger) -> LedgerChunk:
        return await session.agent(agent).replica.read(request.start, request.size)

    return callbacks


def _stamped(operation: Operation) -> Callable[[str, Any], Awaitable[Any]]:
    async def answer(agent: str, request: Any) -> Any:
        return await operation(msgspec.structs.replace(request, agent=agent))

    return answer
