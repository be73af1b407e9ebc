"""Work of every kind for a workspace, each piece of which leaves one line in a file when it is done; and the reckoning.

`ok`: the caller got the result, and it was the right one. Else the outcome is the fate that SessionLost told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

import rlm_wire
from rlm_harness.workspace import AgentTools, Workspace
from rlm_wire.errors import CallError, SessionLost

AT_ONCE = 12
"""Calls that each agent has open."""

TIMES = {"ok": {1}, "executed": {1}, "maybe_executed": {0, 1}, "not_sent": {0}}
"""How often what was asked for may have been done, by outcome; any other outcome is a failure."""


class Stamp(rlm_wire.Request[int], tag="load.stamp"):
    """What cells call: the harness leaves the line, and answers how many of that name it has."""

    name: str


class Load:
    """`calls` commands, edits among them, and `jobs` jobs, and `cells` cells with a callback each, for each agent."""

    def __init__(self, directory: Path, *, agents: int, calls: int, jobs: int, cells: int) -> None:
        self.outcomes: dict[str, str] = {}
        self.service = rlm_wire.Service()
        self.service.handle(Stamp)(self._stamp)
        self._directory = directory
        self._agents = agents
        self._calls = calls
        self._jobs = jobs
        self._cells = cells
        self._stamps: Counter[str] = Counter()
        self._progress = trio.Event()

    async def run(self, workspace: Workspace) -> None:
        """Do it all, until it is done or lost."""
        async with trio.open_nursery() as nursery:
            for number in range(self._agents):
                nursery.start_soon(self._run_agent, workspace, f"agent{number}")

    async def wait_progress(self, outcomes: int) -> None:
        """Wait until there are so many more outcomes than now, or all."""
        goal = min(len(self.outcomes) + outcomes, self._agents * self._of_one_agent)
        while len(self.outcomes) < goal:
            await self._progress.wait()

    @property
    def _of_one_agent(self) -> int:
        return self._calls + self._jobs + self._cells

    def check(self) -> None:
        """Each piece has one outcome, and was done as often as that says; a callback that was answered, once."""
        log = self._directory / "log"
        done = Counter(log.read_text().split()) + self._stamps
        edits = self._directory.glob("edit-*")
        done.update(edit.name.removeprefix("edit-") for edit in edits for _ in range(edit.read_text().count("done")))
        assert len(self.outcomes) == self._agents * self._of_one_agent
        wrong = {
            name: (outcome, done[name])
            for name, outcome in self.outcomes.items()
            if done[name] not in TIMES.get(outcome, ())
        }
        assert wrong == {}
        assert set(done) <= {*self.outcomes, *(f"{name}-callback" for name in self.outcomes)}
        assert max(done.values()) == 1

    async def _run_agent(self, workspace: Workspace, agent: str) -> None:
        try:
            async with workspace.agent(agent) as tools, trio.open_nursery() as nursery:
                limit = trio.CapacityLimiter(AT_ONCE)
                nursery.start_soon(self._run_cells, tools)
                for number in range(self._jobs):
                    nursery.start_soon(self._one, limit, f"{agent}-job{number}", tools, self._job)
                for number in range(self._calls):
                    work = self._edit if number % 10 == 0 else self._command
                    nursery.start_soon(self._one, limit, f"{agent}-call{number}", tools, work)
        except SessionLost:  # the agent could not even be opened
            self.outcomes.update({f"{agent}-unopened{number}": "not_sent" for number in range(self._of_one_agent)})

    async def _run_cells(self, tools: AgentTools) -> None:
        limit = trio.CapacityLimiter(1)
        for number in range(self._cells):
            await self._one(limit, f"{tools.name}-cell{number}", tools, self._cell)

    async def _one(
        self,
        limit: trio.CapacityLimiter,
        name: str,
        tools: AgentTools,
        work: Callable[[AgentTools, str], Awaitable[bool]],
    ) -> None:
        async with limit:
            try:
                outcome = "ok" if await work(tools, name) else "wrong"
            except SessionLost as error:
                outcome = error.fate
            except CallError as error:  # a worker that ends in order still answers what it stops
                outcome = "maybe_executed" if error.message == "the session is closing" else f"wrong: {error}"
        assert name not in self.outcomes
        self.outcomes[name] = outcome
        self._progress.set()
        self._progress = trio.Event()

    async def _command(self, tools: AgentTools, name: str) -> bool:
        result = await tools.bash(f"echo {name} >> log; echo {name}", timeout=60)
        return (result.exit_code, result.output.text) == (0, f"{name}\n")

    async def _edit(self, tools: AgentTools, name: str) -> bool:
        (self._directory / f"edit-{name}").write_text("end")
        return (await tools.edit(f"edit-{name}", "end", "done end")).replacements == 1

    async def _job(self, tools: AgentTools, name: str) -> bool:
        job = await tools.jobs.start(f"echo {name} >> log; echo {name}")
        try:
            ended = await tools.jobs.result(job.id)
        except SessionLost as error:  # whatever is known of this call, the job was started
            raise SessionLost(str(error), fate="maybe_executed") from None
        return (ended.exit_code, ended.text) == (0, f"{name}\n")

    async def _cell(self, tools: AgentTools, name: str) -> bool:
        number = name.rpartition("cell")[2]
        callback = f"await rlm.call('load.stamp', name='{name}-callback')"
        code = f"open('log', 'a').write('{name}\\n')\nn = globals().get('n', -1) + 1\nn, {callback}"
        return (await tools.ipython(code, timeout=60)).result == f"({number}, 1)"

    def _stamp(self, request: Stamp) -> int:
        self._stamps[request.name] += 1
        return self._stamps[request.name]
