"""Agents put back from the files of a session whose harness was killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness.actors import Actors, Opened, cell, says, tool

import rlm_wire
from rlm_harness.agent import Agent
from rlm_harness.events import MessageRead, Usage
from rlm_harness.ledger import records
from rlm_harness.ledger.files import replace
from rlm_harness.ledger.history import History
from rlm_harness.ledger.sessions import load_agents
from rlm_harness.ledger.writer import create_ledger, reopen_ledger
from rlm_harness.model.interface import Reply
from rlm_harness.supervisor.calls import AgentCalls
from rlm_harness.supervisor.journal import read_journal
from rlm_harness.supervisor.policy import Policy
from rlm_harness.supervisor.restoring import notice, restore
from rlm_harness.supervisor.supervisor import Supervisor, open_supervisor
from rlm_harness.supervisor.tree import Node
from rlm_harness.workspace import Workspace
from rlm_wire.methods.inbox import InboxEvent

SYSTEM = records.System(message={"role": "system", "content": "Work."})
DONE = records.Done(stop="answered", answer="", usage=Usage(), turns=1)
ROLLBACK = records.PromptRollback(prompt_id="p", start_turn=0, attempted_turns=1, reason="error")


def user(task: str) -> records.User:
    return records.User(id="p", turn=0, message={"role": "user", "content": task})


def assistant(text: str) -> records.Assistant:
    message = {"role": "assistant", "content": text}
    return records.Assistant(turn=1, message=message, finish_reason="stop", usage=Usage(10, 2), duration=0.0)


def spawned(number: int, task: str, **more: Any) -> records.SubSpawn:
    return records.SubSpawn(child=child(number), child_dir=child(number), prompt=task, **more)


def child(number: int) -> str:
    return f"sub-{number:08x}"


async def write(parent: Path, name: str, *written: records.Record, meta: str = "") -> Path:
    """The ledger of one agent, as it was left."""
    async with create_ledger(parent, name) as ledger:
        for record in written:
            await ledger.append(record)
        if meta:
            await ledger.write_meta({"status": meta})
    return ledger.directory


def write_journal(directory: Path, *entries: Any) -> None:
    replace(directory / "inbox.jsonl", b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))


class Concluding:
    """A model that has seen enough, whoever it speaks for."""

    name = "concluding"

    def __init__(self) -> None:
        self.shown: list[list[dict[str, Any]]] = []

    async def reply(self, messages: Any, tools: Any, emit: Any, tool_choice: str = "auto") -> Reply:
        await trio.lowlevel.checkpoint()
        self.shown.append([dict(message) for message in messages])
        return says("Enough.")


@asynccontextmanager
async def restored(
    directory: Path, url: str, events: Any, model: Any, **policy: Any
) -> AsyncIterator[tuple[Supervisor, Node]]:
    async with taken_up(directory, url, events, model, **policy) as (supervisor, _, _):
        yield supervisor, supervisor.tree.root


@asynccontextmanager
async def taken_up(
    directory: Path, url: str, events: Any, model: Any, **policy: Any
) -> AsyncIterator[tuple[Supervisor, Agent, History]]:
    service = rlm_wire.Service()
    calls = AgentCalls(service)
    async with (
        Workspace.connect(url, cwd=str(directory), service=service) as workspace,
        reopen_ledger(directory) as (ledger, history),
        open_supervisor(workspace, model, events.emit, ledger, calls, policy=Policy(**policy)) as (supervisor, agent),
    ):
        await restore(supervisor)
        yield supervisor, agent, history


async def settled(node: Node) -> None:
    while node.settled_at is None:
        await node.news.wait()


def well_formed(messages: list[dict[str, Any]]) -> bool:
    """Each reply with calls is followed by their results."""
    calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            calls.remove(message["tool_call_id"])
        elif calls:
            return False
        calls = calls or [call["id"] for call in message.get("tool_calls", ())]
    return not calls


async def test_a_session_goes_on_whenever_its_harness_is_killed(
    tmp_path: Path, worker_url: str, events: Any, opened: Opened
) -> None:
    """Snapshots of the files at each event of a session with two children, taken up one after the other."""
    code = (
        "one = await rlm.agent.spawn('one', name='one')\n"
        "two = await rlm.agent.spawn('two', persistent=True)\n"
        "await one.result(); await two.result()\n"
        "await two.send('more'); await two.result()"
    )
    two = [tool("bash", command="true"), says("2"), says("more")]
    model = Actors(go=[cell(code), says("Done.")], one=[says("1")], two=two)
    snapshots: list[Path] = []
    session: list[Path] = []
    emit = events.emit

    async def snapshot(event: Any) -> None:
        if session:
            snapshots.append(tmp_path / f"snapshot-{len(snapshots)}")
            shutil.copytree(session[0], snapshots[-1])
        await emit(event)

    events.emit = snapshot
    async with opened(model) as (supervisor, agent):
        session.append(supervisor.tree.root.directory)
        assert (await agent.prompt("go")).answer == "Done."
    events.emit = emit
    assert len(snapshots) > 20
    for directory in snapshots:
        last = Concluding()
        async with taken_up(directory, worker_url, events, last) as (supervisor, agent, history):
            node = supervisor.tree.root
            recovered = await agent.restore(history, await notice(supervisor, node, history))
            if recovered.prompt is not None:
                outcome = await agent.resume(recovered.prompt, history)
            else:
                outcome = await agent.prompt("go on")
            assert outcome.stop == "answered"
            for below in node.descendants():
                await settled(below)
                assert below.status in ("completed", "idle"), (directory, below.task, below.status, below.error)
        assert all(map(well_formed, last.shown))
        for record in load_agents(directory).descendants():
            assert record.problem == ""
        shutil.rmtree(directory)


async def test_every_agent_has_the_status_that_its_files_tell(tmp_path: Path, worker_url: str, events: Any) -> None:
    root = await write(
        tmp_path,
        "root",
        SYSTEM,
        user("go"),
        spawned(1, "answered", name="one"),
        spawned(2, "cancelled"),
        spawned(3, "failed"),
        spawned(4, "idle", persistent=True),
        spawned(5, "damaged"),
        spawned(6, "unborn"),
        spawned(7, "busy"),
        spawned(8, "closing"),
    )
    await write(root, child(1), SYSTEM, user("answered"), assistant("Yes."), DONE, meta="answered")
    await write(root, child(2), SYSTEM, user("cancelled"), meta="cancelled")
    await write(root, child(3), SYSTEM, user("failed"), ROLLBACK, meta="failed")
    await write(root, child(4), SYSTEM, user("idle"), assistant("For now."), DONE)
    (await write(root, child(5), SYSTEM)).joinpath("messages.jsonl").write_bytes(b"{}\n")
    (root / child(6)).mkdir()
    await write(root, child(7), SYSTEM, user("busy"))
    await write(root, child(8), SYSTEM, user("closing"), assistant("Done."), DONE)
    await write(root, child(9), SYSTEM, user("nobody was told of this one"))
    model = Actors(unborn=[says("Born.")], busy=[says("Through.")], Work=[])
    async with restored(root, worker_url, events, model) as (supervisor, node):
        statuses = {agent.task: agent.status for agent in node.children.values()}
        assert {task: status for task, status in statuses.items() if task not in ("unborn", "busy")} == {
            "answered": "completed",
            "cancelled": "cancelled",
            "failed": "failed",
            "idle": "idle",
            "damaged": "failed",
            "closing": "completed",
        }
        assert node.names["one"].answer == "Yes."
        assert "line 1 of" in str(node.children[child(5)].error)
        for number in (6, 7):
            await settled(node.children[child(number)])
        assert [node.children[child(number)].answer for number in (6, 7)] == ["Born.", "Through."]
        assert supervisor.budgets.subagents == 8
        told = [event.sender_id for event in node.inbox.entries(unread_only=True)]
        assert sorted(told) == [child(number) for number in range(1, 9)]


async def test_budgets_count_what_was_used_before(tmp_path: Path, worker_url: str, events: Any) -> None:
    root = await write(tmp_path, "root", SYSTEM, user("go"), assistant("."), spawned(1, "one"))
    await write(root, child(1), SYSTEM, user("one"), assistant("Yes."), DONE, meta="answered")
    async with restored(root, worker_url, events, Actors(), max_turns=2) as (supervisor, _):
        assert (supervisor.budgets.turns, supervisor.budgets.tokens) == (2, 24)
        assert supervisor.usage == Usage(20, 4)
        assert supervisor.budgets.exhausted == "max_turns"


async def test_inboxes_and_queues_hold_what_was_not_read_or_delivered(
    tmp_path: Path, worker_url: str, events: Any
) -> None:
    root = await write(tmp_path, "root", SYSTEM, user("go"), spawned(1, "idle", persistent=True))
    await write(root, child(1), SYSTEM, user("idle"), assistant("For now."), DONE)

    def event(event_id: str, kind: str = "agent.message") -> dict[str, Any]:
        return {"id": event_id, "type": kind, "sender_id": child(1), "created_at": 1.0, "content": {"text": event_id}}

    write_journal(
        root,
        event("a"),
        event("b"),
        {"type": "read", "event_id": "a"},
        event("c", "shell.completed"),
        {"type": "read", "event_id": "unknown"},
        "no object",
        {"type": "something new"},
        event("d") | {"content": "no object"},
        {"type": "read", "event_id": []},
        {"type": "steer", "id": [], "text": "no id", "created_at": 1.0},
        {"type": "instructions_delivered", "event_ids": [[], {}]},
    )
    instruction = {"type": "instruction", "sender_id": "root", "created_at": 1.0, "source_request_id": "asked"}
    write_journal(
        root / child(1),
        instruction | {"id": "heard", "text": "first"},
        instruction | {"id": "waiting", "text": "second"},
        instruction | {"id": "refused", "text": "third"},
        {"type": "instructions_delivered", "event_ids": ["heard"]},
        {"type": "instruction_failed", "event_id": "refused", "reason": "x"},
    )
    model = Actors(idle=[says("And second.")])
    async with restored(root, worker_url, events, model) as (_, node):
        entries = {entry.id: entry.read for entry in node.inbox.entries(unread_only=False)}
        assert {name: entries[name] for name in "abc"} == {"a": True, "b": False, "c": False}
        told = await model.calls("idle", 1)
        assert told[-1]["content"] == "second"
        assert await events.wait_for(MessageRead) == MessageRead("", "asked", agent=child(1))


async def test_the_journal_goes_on_behind_what_was_whole(tmp_path: Path) -> None:
    write_journal(tmp_path, {"type": "read", "event_id": "a"})
    with (tmp_path / "inbox.jsonl").open("ab") as file:
        file.write(b'{"type":"re')
    assert read_journal(tmp_path) == [{"type": "read", "event_id": "a"}]
    assert (tmp_path / "inbox.jsonl").read_bytes().endswith(b'"a"}\n')
    assert read_journal(tmp_path / "nowhere") == []


async def test_an_agent_is_told_of_those_below_it(tmp_path: Path, worker_url: str, events: Any) -> None:
    root = await write(tmp_path, "root", SYSTEM, user("go"), spawned(1, "one", name="scout"), spawned(2, "two"))
    await write(root, child(1), SYSTEM, user("one"), assistant("Yes."), DONE, meta="answered")
    await write(root, child(2), SYSTEM, user("two"), ROLLBACK)
    async with reopen_ledger(root) as (_, history):
        pass
    async with restored(root, worker_url, events, Actors()) as (supervisor, node):
        told = await notice(supervisor, node, history)
    text = told.message["content"]
    assert f"Agent {child(1)} 'scout': completed\n" in text
    assert f"Agent {child(2)}: failed (its last prompt had failed)\n" in text
    assert "opened anew" in text
    assert told.workspace == "new"


@pytest.mark.parametrize("deep", [False, True])
async def test_agents_below_one_that_has_ended_have_ended(
    tmp_path: Path, worker_url: str, events: Any, deep: bool
) -> None:
    root = await write(tmp_path, "root", SYSTEM, user("go"), spawned(1, "parent"))
    parent = await write(root, child(1), SYSTEM, user("parent"), spawned(2, "kid"), meta="cancelled" if deep else "")
    await write(parent, child(2), SYSTEM, user("kid"))
    model = Actors(parent=[says("Up.")], kid=[says("Down.")])
    async with restored(root, worker_url, events, model, max_depth=2) as (_, node):
        kid = node.children[child(1)].children[child(2)]
        if deep:
            assert (kid.status, kid.error) == ("cancelled", "its parent has ended")
        else:
            await kid.ended.wait()
            assert kid.status in ("completed", "cancelled")  # its parent may have been faster


def test_an_event_of_the_journal_is_one_of_the_inbox() -> None:
    assert set(InboxEvent.__struct_fields__) >= {"id", "type", "sender_id", "created_at", "content"}


async def test_nothing_is_put_back_where_there_was_nothing(tmp_path: Path, worker_url: str, events: Any) -> None:
    root = await write(tmp_path, "root")
    async with restored(root, worker_url, events, Actors()) as (supervisor, node):
        await trio.lowlevel.checkpoint()
        assert (node.children, supervisor.budgets.turns, node.inbox.unread) == ({}, 0, 0)
