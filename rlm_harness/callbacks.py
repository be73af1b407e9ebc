"""What cells may call at the harness: the handlers of an embedding program, each call checked against its cell.

The harness makes up a scope for each cell that it runs, and holds it open while it does. The worker stamps what the
cell calls with it. So a call says which agent it comes from, and one without an open scope is refused. Calls that the
worker makes on its own account carry no scope.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import msgspec

import rlm_wire
from rlm_wire.broker.services import Registration
from rlm_wire.errors import CallError

Call: TypeAlias = "rlm_wire.IncomingCall[Any, Any]"

SCOPE_BYTES: Final = 24
"""Of randomness in a scope: nobody guesses it."""

_calling_agent: ContextVar[str] = ContextVar("rlm_harness.calling_agent")


def calling_agent() -> str:
    """In a handler of a callback: the name of the agent whose cell made the call. LookupError elsewhere."""
    return _calling_agent.get()


class CellScopes:
    """The cells that run for this harness, by scope."""

    def __init__(self) -> None:
        self._scopes = rlm_wire.Scopes()

    @contextmanager
    def open(self, agent: str) -> Iterator[str]:
        """Around a cell of `agent`: the scope that its calls carry. Those still running at the end are cancelled."""
        scope = secrets.token_urlsafe(SCOPE_BYTES)
        with self._scopes.open(scope, agent):
            yield scope

    @contextmanager
    def within(self, scope: str | None) -> Iterator[None]:
        """Around the answer to a call: CallError if its scope is not open, or is closed meanwhile."""
        agent = self._scopes.agent_of(scope)
        token = _calling_agent.set(agent)
        try:
            with self._scopes.within(scope) as work:
                yield
        finally:
            _calling_agent.reset(token)
        if work.cancelled_caught:
            raise CallError("cancelled", "the cell that made this call has ended")


class HarnessService(rlm_wire.Service):
    """What a worker can call at its harness.

    Handlers registered here are for the worker itself: calls from cells do not reach them. `embedding` (None: nothing)
    is for cells, and for nobody else.
    """

    def __init__(self, cells: CellScopes, embedding: rlm_wire.Service | None) -> None:
        super().__init__(embedding.lifespan if embedding is not None else None)
        self._cells = cells
        self._embedding = embedding

    def find(self, method: str) -> Registration | None:
        registration = super().find(method)
        if registration is not None:
            return _for_the_worker(registration)
        registration = self._embedding.find(method) if self._embedding is not None else None
        return None if registration is None else self._for_cells(registration)

    @property
    def features(self) -> list[str]:
        theirs = self._embedding.features if self._embedding is not None else []
        return sorted({*super().features, *theirs})

    def _for_cells(self, registration: Registration) -> Registration:
        async def answer(request: Any, call: Call) -> Any:
            with self._cells.within(call.scope):
                return await _run(registration, request, call)

        def answer_at_once(request: Any, call: Call) -> Any:
            with self._cells.within(call.scope):
                return _run(registration, request, call)

        function = answer if registration.is_async else answer_at_once
        return msgspec.structs.replace(registration, function=function, takes_call=True)


def _for_the_worker(registration: Registration) -> Registration:
    def answer(request: Any, call: Call) -> Any:
        if call.scope is not None:
            raise CallError("permission_denied", f"{registration.method} is not for cells")
        return _run(registration, request, call)

    return msgspec.structs.replace(registration, function=answer, takes_call=True)


def _run(registration: Registration, request: Any, call: Call) -> Any:
    """The handler's result, or its coroutine."""
    return registration.function(request, call) if registration.takes_call else registration.function(request)
