"""`rlm.agent`: child agents, as cells see them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

from rlm_wire.methods.agents import (
    COLLECT_LIMIT,
    WAIT_LIMIT,
    AgentHandle,
    AgentInfo,
    AgentResult,
    CancelAgent,
    CollectAgents,
    GetAgent,
    GetAgentInfo,
    GetAgentResult,
    ListAgents,
    ReadAgentHistory,
    SendToAgent,
    SendToParent,
    SpawnAgent,
    SteerAgent,
    WaitForAgent,
)
from rlm_worker.kernel.inside.api.calls import Calls, operation, wait
from rlm_worker.kernel.inside.api.history import History, Ledger


class Agent:
    """A child of this agent: `id`, `session_dir`. It lives on whether this object does or not."""

    def __init__(self, calls: Calls, handle: AgentHandle) -> None:
        self._calls = calls
        self._ledger = Ledger()
        self.id = handle.id
        self.session_dir = handle.session_dir

    def __repr__(self) -> str:
        return f"<agent {self.id}>"

    @operation
    async def info(self) -> AgentInfo:
        """`status`, `turns`, `tokens`, `elapsed_seconds`, `error` and more, as they are now."""
        return await self._calls.request(GetAgentInfo(self.id))

    @operation
    async def wait(self, timeout: float = 30) -> AgentInfo:
        """As `info`, once it has answered or ended, or after `timeout` seconds (at most 300). Never touches it."""
        return await self._calls.request(WaitForAgent(self.id, min(timeout, WAIT_LIMIT)))

    @operation
    async def result(self, yield_after: float = WAIT_LIMIT) -> AgentResult:
        """`answer`, `status`, `usage`, `turns`, once it has answered; or, still `running`, after `yield_after` seconds.

        Raises rlm.Error if it has failed or was cancelled.
        """
        return await self._calls.request(GetAgentResult(self.id, min(yield_after, WAIT_LIMIT)))

    @operation
    async def cancel(self) -> AgentInfo:
        """End it and all below it, and wait until they have stopped."""
        return await self._calls.request(CancelAgent(self.id))

    @operation
    async def send(self, message: str) -> str:
        """A message for when it answers or waits; wakes it if it is idle. Returns the message's id, at once."""
        return await self._calls.request(SendToAgent(self.id, message))

    @operation
    async def steer(self, message: str) -> str:
        """As `send`, but for its next step."""
        return await self._calls.request(SteerAgent(self.id, message))

    @operation
    async def history(self) -> History:
        """Its conversation so far, as `rlm.history()` is this agent's. Only what is new is fetched."""
        while chunk := (await self._calls.request(ReadAgentHistory(self.id, self._ledger.size))).data:
            self._ledger.add(self._ledger.size, chunk)
        return self._ledger.snapshot()


class Results:
    """Results as they come: `async for` where an event loop runs, `for` anywhere else."""

    def __init__(self, calls: Calls, agents: Iterable[Agent]) -> None:
        self._calls = calls
        self._missing = [agent.id for agent in agents]

    def __iter__(self) -> Iterator[AgentResult]:
        while self._missing:
            yield wait(self._next())

    async def __aiter__(self) -> AsyncIterator[AgentResult]:
        while self._missing:
            yield await self._next()

    async def _next(self) -> AgentResult:
        result = None
        while result is None:
            result = await self._calls.request(CollectAgents(self._missing[:COLLECT_LIMIT]))
        self._missing.remove(result.id)
        return result


class Agents:
    """Agents with the same tools in the same workspace, each with a conversation and a kernel of its own."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @operation
    async def spawn(self, task: str, *, name: str | None = None, persistent: bool = False) -> Agent:
        """Start a child; its handle has `result`, `wait`, `info`, `send`, `steer`, `cancel` and `history`.

        Returns at once. The child knows nothing but `task`, and has a kernel of its own. `name` must be new among this
        agent's children. A `persistent` child can be told more when it has answered.
        """
        return Agent(self._calls, await self._calls.request(SpawnAgent(task, name, persistent)))

    @operation
    async def get(self, name_or_id: str) -> Agent:
        """A child by its id or name, also one that has ended."""
        return Agent(self._calls, await self._calls.request(GetAgent(name_or_id)))

    @operation
    async def list(self, *, recursive: bool = False) -> list[AgentInfo]:
        """All children, oldest first, also ended ones; `recursive`: and theirs."""
        return await self._calls.request(ListAgents(recursive))

    def collect(self, agents: Iterable[Agent]) -> Results:
        """Their results in the order in which they come: `for result in ...`, or `async for` where an event loop runs.

        Never raises for a child that has failed: see the `status` and `error` of its result.
        """
        return Results(self._calls, agents)

    @operation
    async def send_to_parent(self, message: str) -> str:
        """Put a message into the parent's inbox; returns the event's id."""
        return await self._calls.request(SendToParent(message))
