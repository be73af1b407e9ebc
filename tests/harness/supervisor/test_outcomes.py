"""What of a child stands in the files, and what its parent gets of it without waiting."""

from __future__ import annotations

from typing import Any

from harness.actors import Actors, Opened, cell, records, says

from rlm_harness.events import AgentSpawned
from rlm_harness.ledger.sessions import load_agents
from rlm_harness.model.interface import ModelError, Reply


async def test_no_child_begins_before_its_parents_ledger_has_it(opened: Opened, events: Any) -> None:
    recorded: list[bool] = []
    emit = events.emit

    async def look(event: Any) -> None:
        if isinstance(event, AgentSpawned):
            spawned = [record for record in records(directory) if record["type"] == "sub_spawn"]
            recorded.append(event.agent in [record["child"] for record in spawned])
        await emit(event)

    events.emit = look
    model = Actors(root=[cell("rlm.agent.spawn('child go').result().answer"), says("root")], child=[says("child")])
    async with opened(model) as (supervisor, agent):
        directory = supervisor.tree.root.directory
        await agent.prompt("root")
    assert recorded == [True]


async def test_of_a_child_that_has_failed_the_files_say_so(opened: Opened) -> None:
    async def fails(_: Any) -> Reply:
        raise ModelError("no such model")

    model = Actors(root=[cell("rlm.agent.spawn('bad go').wait()"), says("root")], bad=[fails])
    async with opened(model) as (supervisor, agent):
        await agent.prompt("root")
    assert [child.status for child in load_agents(supervisor.tree.root.directory).children] == ["failed"]


async def test_a_result_that_is_there_is_given_to_one_who_will_not_wait(opened: Opened) -> None:
    code = (
        "child = rlm.agent.spawn('child go')\nchild.wait()\n"
        "rlm.call('agents.collect', agents=[child.id], timeout=0)['answer']"
    )
    model = Actors(root=[cell(code), says("root")], child=[says("42")])
    async with opened(model) as (_, agent):
        await agent.prompt("root")
    assert model.seen("root", 1) == "'42'"
