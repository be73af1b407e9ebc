"""`rlm.watch`: being told of what changes, as cells see it."""

from __future__ import annotations

import os

from rlm_wire.methods.agents import CancelAgentWatch, GetAgentWatch, ListAgentWatches, WatchAgent
from rlm_wire.methods.watches import CancelWatch, GetWatch, ListWatches, WatchInfo, WatchJob, WatchPath
from rlm_worker.kernel.inside.api.agent import Agent
from rlm_worker.kernel.inside.api.calls import Calls, Error, operation
from rlm_worker.kernel.inside.api.shell import ShellJob

OF_AGENTS = "agent-watch-"
"""So begin the ids of those that the harness keeps; all others are the worker's."""


class Watch:
    """A watch as it was when it was asked about: `id`, `kind`, `target`, `recursive`, `status`, `error`."""

    def __init__(self, calls: Calls, info: WatchInfo) -> None:
        self._calls = calls
        self.id = info.id
        self.kind = info.kind
        self.target = info.target
        self.recursive = info.recursive
        self.status = info.status
        self.error = info.error

    def __repr__(self) -> str:
        return f"<{self.id} of {self.target}: {self.status}>"

    @operation
    async def cancel(self) -> Watch:
        """End it; what it has not told yet is dropped."""
        of_agent = self.id.startswith(OF_AGENTS)
        request = CancelAgentWatch(self.id) if of_agent else CancelWatch("", self.id)
        return Watch(self._calls, await self._calls.request(request))


class Watches:
    """Each change leads to an event in the inbox; what happens within 200 ms is one."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @operation
    async def path(self, path: str | os.PathLike[str], *, recursive: bool = False) -> Watch:
        """Watch a file, or a directory and what is directly in it (`recursive`: anywhere below)."""
        return Watch(self._calls, await self._calls.request(WatchPath("", os.fspath(path), recursive)))

    @operation
    async def job(self, job: ShellJob | str) -> Watch:
        """Watch the output of a job."""
        job_id = job.id if isinstance(job, ShellJob) else job
        return Watch(self._calls, await self._calls.request(WatchJob("", job_id)))

    @operation
    async def agent(
        self, agent: Agent | str, *, every_turns: int | None = None, every_tokens: int | None = None
    ) -> Watch:
        """Watch a child: each step that it has done, or each time that so many more turns or tokens are full."""
        agent_id = agent.id if isinstance(agent, Agent) else agent
        return Watch(self._calls, await self._calls.request(WatchAgent(agent_id, every_turns, every_tokens)))

    @operation
    async def get(self, watch_id: str) -> Watch:
        """A watch by its id, as it is now."""
        request = GetAgentWatch(watch_id) if watch_id.startswith(OF_AGENTS) else GetWatch("", watch_id)
        return Watch(self._calls, await self._calls.request(request))

    @operation
    async def list(self) -> list[WatchInfo]:
        """All watches this agent has set, oldest first, also ended ones."""
        watches = await self._calls.request(ListWatches(""))
        try:
            of_agents = await self._calls.request(ListAgentWatches())
            watches = [*watches, *of_agents]
        except Error as error:
            if error.code not in ("unimplemented", "unavailable"):  # a harness without agents
                raise
        return sorted(watches, key=lambda watch: watch.created_at)
