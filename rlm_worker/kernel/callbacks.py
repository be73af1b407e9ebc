"""What cells may call: who is asking, whether it may, and where the call leads.

A kernel is known by its own socket, and a call by its scope: an unguessable word that stands for one running cell. It
is open from the cell's start to its end, for that agent's kernel and no other. A call outside of an open scope is
refused; closing a scope cancels what was called in it. Methods that concern the workspace are answered here, all others
by the harness, which knows the scope as well: it is the one that gave it.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from rlm_wire.broker.incoming import IncomingCall
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.relay import relay
from rlm_wire.broker.scopes import Scopes
from rlm_wire.broker.services import Service
from rlm_wire.errors import CallError
from rlm_wire.methods.base import Request
from rlm_wire.methods.skills import CallSkill
from rlm_worker.kernel.budget import Budget

Result = TypeVar("Result")
Handler = TypeVar("Handler", bound=Callable[..., Any])

OUTSIDE = "rlm was used outside of an active cell: the cell that started this has ended"


CALLS_LIMIT: Final = 1024
"""Calls of one cell in progress: a sixteenth of what the session can carry for all."""

NAME_LIMIT: Final = 96
"""Characters of a skill's name."""

SKILLS_COUNTED: Final = 256
"""Names of skills that a cell's calls are counted by: more than there are, for a cell may make names up."""

BYTES_LIMIT: Final = 32 << 20
"""Arguments of a cell's relayed calls in progress, together: the worker holds them as long."""


class _OpenCell:
    """A cell that runs, and the calls it waits for."""

    def __init__(self, agent: str, budget: Budget, caller: str | None) -> None:
        self.agent = agent
        self.budget = budget
        self.caller = caller
        self.skill_calls: Counter[str] = Counter()
        self._calls = 0
        self._bytes = 0

    @contextmanager
    def calling(self, size: int, skill: str | None) -> Iterator[None]:
        """Around the answer to a call: CallError("resource_exhausted") if there are too many. Stops the clock.

        A skill is an errand of the cell's own, though, and may hang: each gets no more time than the cell.
        """
        if self._calls >= CALLS_LIMIT or self._bytes + size > BYTES_LIMIT:
            raise CallError(
                "resource_exhausted",
                f"a cell has at most {CALLS_LIMIT} calls in progress, with {BYTES_LIMIT >> 20} MiB of arguments"
                " together: wait for some of them first",
                retryable=True,
            )
        self._calls += 1
        self._bytes += size
        try:
            with self.budget.paused(math.inf if skill is None else self.budget.timeout):
                yield
        finally:
            self._calls -= 1
            self._bytes -= size


class Callbacks:
    """The callbacks of one session's cells. `harness` is where calls go that have no handler here (None: nowhere)."""

    def __init__(self, harness: Peer | None = None) -> None:
        self.harness = harness
        self._handlers: dict[type[Request[Any]], tuple[Callable[[str, Any], Any], str | None]] = {}
        self._scopes = Scopes()
        self._cells: dict[str, _OpenCell] = {}

    def handle(self, request: type[Request[Any]], *, skill: str | None = None) -> Callable[[Handler], Handler]:
        """Decorator: the function answers `request` from cells. It takes the agent's name and the request.

        Plain or async, as with `Service.handle`. To be called before there are kernels. `skill` is what its calls are
        counted as, if they are.
        """

        def register(function: Handler) -> Handler:
            self._handlers[request] = function, skill
            return function

        return register

    @contextmanager
    def open(self, scope: str, agent: str, budget: Budget, caller: str | None) -> Iterator[Mapping[str, int]]:
        """Hold `scope` open for a cell of `agent`. `budget` stands still while calls of the cell are answered.

        `caller` is the scope in which the cell itself was asked for, if any. Gives the count of its calls of skills.
        """
        cell = self._cells[scope] = _OpenCell(agent, budget, caller)
        try:
            with self._scopes.open(scope, agent):
                yield cell.skill_calls
        finally:
            del self._cells[scope]

    def check_new(self, scope: str, agent: str, caller: str | None) -> None:
        """Refuse a cell that could not run: CallError.

        That is one asked for, directly or through other agents, by a cell of the same agent: each would wait for the
        other. And one whose scope is that of a running cell.
        """
        if scope in self._cells:
            raise CallError("invalid_argument", "this scope is in use by another cell")
        while (cell := self._cells.get(caller or "")) is not None:
            if cell.agent == agent:
                raise CallError(
                    "failed_precondition",
                    f"the agent {agent!r} is running the cell from which this was called: its kernel cannot run another"
                    " one before that has ended",
                )
            caller = cell.caller

    def service(self, agent: str) -> Service:
        """What the kernel of `agent` can call."""
        service = Service()
        for request, (function, skill) in self._handlers.items():
            service.handle(request)(self._answer(agent, function, skill))

        @service.handle_rest
        async def rest(method: str, params: msgspec.Raw, call: IncomingCall[Any, Any]) -> msgspec.Raw:
            skill = _remote_skill(params, call) if method == CallSkill.method else None
            with self._within(agent, call.scope, size=memoryview(params).nbytes, skill=skill):
                if self.harness is None:
                    raise CallError("unimplemented", f"there is no method {method[:200]!r} here")
                return await relay(method, params, call, self.harness, scope=call.scope)

        return service

    def _answer(self, agent: str, function: Callable[[str, Any], Any], skill: str | None) -> Callable[..., Any]:
        async def answer(request: Any, call: IncomingCall[Any, Any]) -> Any:
            with self._within(agent, call.scope, skill=skill):
                return await function(agent, request)

        def answer_at_once(request: Any, call: IncomingCall[Any, Any]) -> Any:
            self._check(agent, call.scope)
            return function(agent, request)

        return answer if inspect.iscoroutinefunction(function) else answer_at_once

    @contextmanager
    def _within(self, agent: str, scope: str | None, *, size: int = 0, skill: str | None = None) -> Iterator[None]:
        cell = self._check(agent, scope)
        if skill is not None and (skill in cell.skill_calls or len(cell.skill_calls) < SKILLS_COUNTED):
            cell.skill_calls[skill] += 1
        with cell.calling(size, skill), self._scopes.within(scope) as work:
            yield
        if work.cancelled_caught:
            raise CallError("cancelled", "the cell that made this call has ended")

    def _check(self, agent: str, scope: str | None) -> _OpenCell:
        cell = self._cells.get(scope or "")
        if cell is None or cell.agent != agent:
            raise CallError("permission_denied", OUTSIDE)
        return cell


class _Named(msgspec.Struct):
    skill: str


def _remote_skill(params: msgspec.Raw, call: IncomingCall[Any, Any]) -> str:
    """The name in the params of a `CallSkill`, bounded; the harness will tell of params that do not fit."""
    named: _Named = call.peer.decode(params, _Named, "the params of skills.call")
    return named.skill[:NAME_LIMIT]
