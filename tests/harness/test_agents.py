"""Agents that start agents: real kernels in one worker, a scripted model, a real ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.actors import Actors, cell, says

import rlm_wire
from rlm_harness.agent import Agent
from rlm_harness.ledger.writer import create_ledger
from rlm_harness.supervisor.calls import AgentCalls
from rlm_harness.supervisor.policy import Policy
from rlm_harness.supervisor.supervisor import Supervisor, open_supervisor
from rlm_harness.workspace import Workspace

Opened = Callable[..., AbstractAsyncContextManager[tuple[Supervisor, Agent]]]


@pytest.fixture
def opened(worker_url: str, tmp_path: Path, events: Any) -> Opened:
    @asynccontextmanager
    async def open_root(model: Actors, **policy: Any) -> AsyncIterator[tuple[Supervisor, Agent]]:
        service = rlm_wire.Service()
        calls = AgentCalls(service)
        async with (
            Workspace.connect(worker_url, cwd=str(tmp_path), service=service) as workspace,
            create_ledger(tmp_path / "sessions") as ledger,
            open_supervisor(workspace, model, events.emit, ledger, calls, policy=Policy(**policy)) as both,
        ):
            yield both

    return open_root


def records(directory: Path, name: str = "messages.jsonl") -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (directory / name).read_bytes().splitlines()]


async def test_a_cell_starts_two_children_and_gets_their_answers(opened: Opened) -> None:
    model = Actors(
        root=[
            cell(
                "agents = [rlm.agent.spawn(task) for task in ('one go', 'two go')]\n"
                "sorted(agent.result().answer for agent in agents)"
            ),
            says("both are done"),
        ],
        one=[cell("x = 20 + 1; print(x)"), says("one is 21")],
        two=[says("two is 2")],
    )
    async with opened(model) as (supervisor, agent):
        outcome = await agent.prompt("root")
        assert outcome.answer == "both are done"
        assert "['one is 21', 'two is 2']" in model.seen("root", 1)
        assert model.seen("one", 1) == "21\n"
        one, two = supervisor.tree.root.children.values()
        assert (one.status, one.turns, two.status, two.turns) == ("completed", 2, "completed", 1)
        assert supervisor.usage.prompt_tokens == 50
        spawned = [record for record in records(supervisor.tree.root.directory) if record["type"] == "sub_spawn"]
        assert [record["child_dir"] for record in spawned] == [one.id, two.id]
        assert records(one.directory)[-1] == {**records(one.directory)[-1], "type": "done", "answer": "one is 21"}
