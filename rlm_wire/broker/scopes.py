"""Which cell a call belongs to. A scope is an unguessable id; it travels in a context variable. Spec §6.7.

A task inherits the scope of the task that started it, so a background task of cell 1 keeps cell 1's scope while cell 2
runs. Closing a scope cancels the calls that were made in it; using it later fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import trio

from rlm_wire.errors import CallError

current_scope: ContextVar[str | None] = ContextVar("rlm_wire.current_scope", default=None)
"""The scope that calls made here and now are stamped with."""


class Scopes:
    """The scopes that are open at one side, each with the agent it belongs to."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, set[trio.CancelScope]]] = {}

    @contextmanager
    def open(self, scope: str, agent: str) -> Iterator[None]:
        """Hold `scope` open for `agent`; leaving closes it and cancels what runs in it."""
        self._open[scope] = (agent, set())
        try:
            yield
        finally:
            _, running = self._open.pop(scope)
            for cancel_scope in running:
                cancel_scope.cancel("its scope was closed")

    def agent_of(self, scope: str | None) -> str:
        """The agent that `scope` belongs to. CallError `permission_denied` if it is not open."""
        if scope is None or scope not in self._open:
            raise CallError("permission_denied", "this is not callable outside of a running cell")
        return self._open[scope][0]

    @contextmanager
    def within(self, scope: str | None) -> Iterator[trio.CancelScope]:
        """Run the body as work of `scope`: it is cancelled when the scope closes. CallError if it is closed already."""
        self.agent_of(scope)
        assert scope is not None
        with trio.CancelScope() as cancel_scope:
            running = self._open[scope][1]
            running.add(cancel_scope)
            try:
                yield cancel_scope
            finally:
                running.discard(cancel_scope)
