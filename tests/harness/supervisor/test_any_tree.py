"""Trees of agents that do whatever they may, in any order: all come to an end, and within their limits."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from harness.supervisor.world import Ask, World

import rlm_wire
from rlm_harness.events import AgentChanged, Event, Usage
from rlm_harness.ledger.history import read_history
from rlm_harness.ledger.writer import create_ledger
from rlm_harness.model.interface import Message, ModelError, Reply, ToolCall
from rlm_harness.supervisor.calls import AgentCalls
from rlm_harness.supervisor.policy import Policy
from rlm_harness.supervisor.supervisor import open_supervisor
from rlm_wire.errors import CallError
from rlm_wire.methods import agents, inbox

SLOTS, WORKING, DEPTH = 2, 2, 3
REFUSALS = {"failed_precondition", "resource_exhausted", "cancelled", "not_found", "permission_denied"}


class Anything:
    """A model that does one thing or another, and cells that do."""

    name = "anything"

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.calls = Counter[str]()
        self.refusals: set[str] = set()
        self.running = self.most = self.spawned = 0

    async def pause(self) -> None:
        await trio.sleep(self.random.choice((0, 0, 0.001, 0.003)))

    async def reply(self, messages: Sequence[Message], tools: Any, emit: Any, tool_choice: str = "auto") -> Reply:
        task = messages[1]["content"]
        self.calls[task] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.pause()
        finally:
            self.running -= 1
        if self.calls[task] > self.random.randint(2, 5):
            return Reply(f"{task} is done", [], "stop", Usage(3, 1))
        if task != "root" and self.random.random() < 0.05:
            raise ModelError("no more")
        name, arguments = self.random.choice([("ipython", {"code": "x"})] * 3 + [("wait", {"timeout": 0.01})])
        return Reply("", [ToolCall("c", name, json.dumps(arguments))], "tool_calls", Usage(3, 1))

    async def play(self, agent: str, code: str, ask: Ask) -> None:
        for _ in range(self.random.randint(1, 4)):
            await self.pause()
            try:
                await self.act(ask)
            except CallError as error:
                self.refusals.add(error.code)

    async def act(self, ask: Ask) -> None:
        children = await ask(agents.ListAgents())
        some = [child.id for child in children if self.random.random() < 0.7]
        one = self.random.choice(some) if some else None
        match self.random.randrange(10 if one else 4):
            case 0 | 1 | 2:
                self.spawned += 1
                await ask(agents.SpawnAgent(f"task-{self.spawned}", persistent=self.random.random() < 0.3))
            case 3:
                for entry in (await ask(inbox.ListInbox()))[:3]:
                    await ask(inbox.ReadInbox(entry.id))
                await ask(agents.SendToParent("hello"))
            case 4:
                await ask(agents.GetAgentResult(one or ""))
            case 5:
                await ask(agents.CollectAgents(some))
            case 6:
                await ask(agents.WaitForAgent(one or "", self.random.choice((0, 0.01, 300))))
            case 7:
                await ask(agents.SendToAgent(one or "", "more"))
                await ask(agents.SteerAgent(one or "", "now"))
            case 8:
                await ask(agents.CancelAgent(one or ""))
            case 9:
                await ask(agents.WatchAgent(one or "", every_turns=self.random.choice((None, 2))))


@pytest.mark.parametrize("seed", range(12))
async def test_any_tree_comes_to_an_end_within_its_limits(tmp_path: Path, seed: int) -> None:
    model, service = Anything(seed), rlm_wire.Service()
    calls, working = AgentCalls(service), Counter[int]()

    async def emit(event: Event) -> None:
        if isinstance(event, AgentChanged) and event.status == "running":
            for depth in range(1, DEPTH + 1):
                at_work = [node for node in supervisor.tree.root.descendants() if node.depth == depth]
                working[depth] = max(working[depth], sum(node.status == "running" for node in at_work))

    world: Any = World(service, model.play)
    policy = Policy(max_depth=DEPTH, max_model_calls=SLOTS, max_working=WORKING, max_subagents=40, max_tokens=2000)
    with trio.fail_after(30):
        async with create_ledger(tmp_path) as ledger:
            opened = open_supervisor(world, model, emit, ledger, calls, policy=policy)
            async with opened as (supervisor, agent):
                for task in ("root", "again"):
                    model.calls["root"] = 0
                    await agent.prompt(task)
    nodes = list(supervisor.tree.root.descendants())
    assert all(node.ended.is_set() and node.status in ("completed", "failed", "cancelled") for node in nodes)
    assert not world.open
    assert model.most <= SLOTS
    assert max(working.values(), default=0) <= WORKING
    assert model.refusals <= REFUSALS
    assert supervisor.budgets.subagents == len(nodes)
    assert supervisor.budgets.turns == supervisor.tree.root.turns + sum(node.turns for node in nodes)
    for node in [supervisor.tree.root, *nodes]:
        if (node.directory / "messages.jsonl").exists():
            read_history(node.directory)  # with its invariants
