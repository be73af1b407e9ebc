"""Which methods the worker answers to cells itself, and which code each leads to. All others go to the harness.

A handler takes the agent's name, which the worker knows from the kernel's socket, and the request.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rlm_wire.methods.base import Request
from rlm_wire.methods.ledger import LedgerChunk, ReadLedger
from rlm_wire.methods.skills import LocalSkill
from rlm_wire.methods.tools import Bash, Edit, Fetch
from rlm_worker import tool_calls
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

    _skill(callbacks, session, "bash", Bash)
    _skill(callbacks, session, "edit", Edit)
    _skill(callbacks, session, "fetch", Fetch)
    return callbacks


def _skill(callbacks: Callbacks, session: Session, name: LocalSkill, request: type[Request[Any]]) -> None:
    """A tool that cells call as the skill `name`, if their agent has that."""
    run: Operation = functools.partial(getattr(tool_calls, name), session)

    @callbacks.handle(request, skill=name)
    async def answer(agent: str, request: Any) -> Any:
        tool_calls.check_skill(session.agent(agent), name)
        return await _stamped(run)(agent, request)


def _stamped(operation: Operation) -> Callable[[str, Any], Awaitable[Any]]:
    async def answer(agent: str, request: Any) -> Any:
        return await operation(msgspec.structs.replace(request, agent=agent))

    return answer
