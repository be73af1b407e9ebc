"""A workspace without kernels, for many trees of agents in little time: a cell is a function of the test's.

All else is real: supervisor, turn loop, ledgers, and the way of a call from its cell's scope to its handler.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import trio

import rlm_wire
from rlm_harness.callbacks import CellScopes, HarnessService
from rlm_wire.errors import CallError
from rlm_wire.methods.base import Request
from rlm_wire.methods.kernels import CellResult
from rlm_wire.methods.sessions import AgentClosed, WorkspaceInfo
from rlm_wire.methods.tools import Output

Result = TypeVar("Result")
Ask = Callable[[Request[Any]], Awaitable[Any]]
"""Makes a call from a cell."""


class Cells:
    """The one cell of an agent that runs, as an open call."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._scope = trio.CancelScope()

    def cancel(self, reason: str) -> None:
        self._scope.cancel(reason)

    async def __aiter__(self) -> AsyncIterator[Any]:
        await self._work()
        for nothing in ():
            yield nothing

    async def result(self) -> CellResult:
        return CellResult("ok", Output(head=b"", bytes=0, chars=0, lines=0))


class Tools:
    """What an agent has: cells only."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self.closed: AgentClosed | None = None

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def open_ipython(self, code: str, *, timeout: float | None = None) -> AsyncIterator[Cells]:
        with self._world.cells.open(self.name) as scope:

            async def ask(request: Request[Any]) -> Any:
                return await self._world.call(request, scope)

            yield Cells(lambda: self._world.play(self.name, code, ask))


class World:
    """The workspace. `play` runs the cell of an agent."""

    adopted = None
    info = WorkspaceInfo("/w", "world", 1, "linux", "3")

    def __init__(self, service: rlm_wire.Service, play: Callable[[str, str, Ask], Awaitable[None]]) -> None:
        self.cells = CellScopes()
        self.play = play
        self.open: set[str] = set()
        self.peer = SimpleNamespace(call=self._refuse)
        self._service = HarnessService(self.cells, service)

    async def _refuse(self, request: Any) -> None:
        raise CallError("not_found", "there is no such agent")

    async def call(self, request: Request[Result], scope: str) -> Result:
        """As a cell's call comes in; what it takes and gives can be encoded."""
        registration = self._service.find(request.method)
        assert registration is not None
        checked = msgspec.convert(msgspec.to_builtins(request), type(request))
        answer = registration.function(checked, SimpleNamespace(scope=scope))
        result: Result = await answer if registration.is_async else answer
        msgspec.msgpack.encode(result)
        return result

    @asynccontextmanager
    async def agent(self, name: str, **_: Any) -> AsyncIterator[Tools]:
        assert name not in self.open
        self.open.add(name)
        tools = Tools(self, name)
        try:
            yield tools
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            self.open.remove(name)
            tools.closed = AgentClosed()

    @asynccontextmanager
    async def events(self, after: int) -> AsyncIterator[AsyncIterator[Any]]:
        yield self._silence()

    async def _silence(self) -> AsyncIterator[Any]:
        await trio.sleep_forever()
        yield None
