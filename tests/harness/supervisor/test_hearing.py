"""What reaches an agent, and when: inbox, notices, the tool `wait`, and messages that cannot be delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from harness.actors import Actors, Opened, cell, records, says, silent, tool

from rlm_harness.model.interface import Reply
from rlm_harness.supervisor.inbox import Inbox
from rlm_wire.methods.inbox import InboxEvent

READ = "for e in rlm.inbox.list(): e = rlm.inbox.read(e.id); print(e.type, e.content)"


async def test_a_message_to_the_parent_ends_its_wait_and_is_announced_once(opened: Opened) -> None:
    gate = trio.Event()

    async def speak(_: Any) -> Reply:
        await gate.wait()
        return cell("event = rlm.agent.send_to_parent('are you there?'); len(event)")

    async def wait(_: Any) -> Reply:
        gate.set()
        return tool("wait")

    model = Actors(
        root=[
            cell("child = rlm.agent.spawn('child go', name='kid')"),
            wait,
            cell("[entry] = rlm.inbox.list(); print(entry.type, entry.read, entry.sender_id == child.id)"),
            cell(
                "event = rlm.inbox.read(entry.id); print(event.content['text'], event.content['name'], event.read)\n"
                "print(rlm.inbox.list(), [e.read for e in rlm.inbox.list(unread_only=False)])\n"
                "try: rlm.inbox.read('nothing')\nexcept rlm.Error as error: print(error)"
            ),
            tool("wait", timeout=0),
            tool("wait", timeout="soon"),
            says("root"),
        ],
        child=[speak, silent],
    )
    async with opened(model) as (supervisor, agent):
        await agent.prompt("root")
        shown = [message["content"] for message in model.shown["root"][2]]
        assert shown[-2:] == [
            "Events are available: see rlm.inbox.list().",
            '<runtime_event kind="notice" unread="1">\nYou have 1 unread event: rlm.inbox.list() lists them, '
            "rlm.inbox.read(event_id) gives one.\n</runtime_event>",
        ]
        assert model.seen("root", 3) == "agent.message False True\n", "it is not announced again"
        assert model.seen("root", 4) == (
            "are you there? kid True\n[] [True]\nnot_found: unknown inbox event 'nothing'\n"
        )
        assert model.seen("root", 5) == "No events came within the time."
        assert model.seen("root", 6).startswith("Error: the arguments of wait do not fit")
        journal = records(supervisor.tree.root.directory, "inbox.jsonl")
        assert [record["type"] for record in journal] == ["agent.message", "read"]
        (child,) = supervisor.tree.root.children.values()
        assert journal[0]["source_request_id"] == records(child.directory)[3]["id"]


async def test_an_answer_that_was_not_fetched_is_announced_with_its_end(opened: Opened) -> None:
    model = Actors(
        root=[
            cell("child = rlm.agent.spawn('child go')\nchild.wait(300).status"),
            cell(READ),
            says("root"),
        ],
        child=[says("x" * 5000)],
    )
    async with opened(model) as (_, agent):
        await agent.prompt("root")
    assert 'unread="1"' in model.seen("root", 1)
    assert "'status': 'completed'" in model.seen("root", 2)
    assert f"'answer': '{'x' * 4096}'" in model.seen("root", 2)


async def test_the_end_of_a_job_is_quiet_and_ends_a_wait(opened: Opened) -> None:
    model = Actors(
        root=[
            cell("job = rlm.shell.start('read; echo done', stdin=True)\njob.close_stdin()"),
            tool("wait"),
            cell("[e] = rlm.inbox.list(); print(e.type, job.result().exit_code)\nwhile rlm.inbox.list(): pass"),
            says("root"),
        ],
    )
    async with opened(model) as (_, agent):
        await agent.prompt("root")
    assert [message["content"] for message in model.shown["root"][2]][-1] == (
        "Events are available: see rlm.inbox.list()."
    )
    assert model.seen("root", 3).startswith("shell.completed 0\n")


async def test_a_watched_path_reaches_the_inbox(opened: Opened, tmp_path: Path) -> None:
    model = Actors(
        root=[
            cell("watch = rlm.watch.path('.')\nopen('new', 'w').close()"),
            tool("wait"),
            cell(
                "e = rlm.inbox.read(rlm.inbox.list()[0].id)\n"
                "print(e.type, e.subscription_id == watch.id, e.content['paths'])"
            ),
            says("root"),
        ],
    )
    async with opened(model) as (_, agent):
        await agent.prompt("root")
    assert model.seen("root", 3) == f"watch.path True ['{tmp_path}/new']\n"


async def test_what_a_child_will_not_hear_any_more_is_told_to_its_parent(opened: Opened) -> None:
    model = Actors(
        root=[
            cell("child = rlm.agent.spawn('child go'); said = child.send('hello')\nchild.cancel().status"),
            cell(
                "e = rlm.inbox.read(rlm.inbox.list()[0].id)\n"
                "print(e.type, e.content['reason'], e.content['message_id'] == said)"
            ),
            says("root"),
        ],
        child=[silent],
    )
    async with opened(model) as (supervisor, agent):
        await agent.prompt("root")
        assert model.seen("root", 2) == "agent.delivery_failed agent_cancelled True\n"
        (child,) = supervisor.tree.root.children.values()
        last = records(child.directory, "inbox.jsonl")[-1]
        assert (last["type"], last["reason"]) == ("instruction_failed", "agent_cancelled")


async def test_what_a_cell_left_running_keeps_its_own_scope(opened: Opened) -> None:
    model = Actors(
        root=[
            cell(
                "import asyncio\ngo = asyncio.Event()\nasync def later():\n    await go.wait()\n"
                "    return await rlm.agent.spawn('child go')\ntask = asyncio.create_task(later())"
            ),
            cell(
                "go.set()\ntry: await task\nexcept rlm.Error as error: print(error.code)\nprint(await rlm.agent.list())"
            ),
            says("root"),
        ],
    )
    async with opened(model) as (_, agent):
        await agent.prompt("root")
    assert model.seen("root", 2) == "permission_denied\n[]\n"


async def test_an_inbox_that_cannot_be_written_stops_nothing_and_is_told_once(opened: Opened) -> None:
    model = Actors(
        root=[
            cell("rlm.agent.spawn('a go').result().answer"),
            cell("rlm.agent.spawn('b go').result().answer"),
            says("root"),
        ],
        a=[says("a")],
        b=[says("b")],
    )
    async with opened(model) as (supervisor, agent):
        (supervisor.tree.root.directory / "inbox.jsonl").mkdir()
        await agent.prompt("root")
    shown = [message["content"] for message in model.shown["root"][2]]
    assert sum("kept in memory only" in content for content in shown) == 1
    assert shown[-1] == "'b'"


async def test_a_full_inbox_takes_no_more_messages_but_every_answer(opened: Opened) -> None:
    model = Actors(
        root=[cell("child = rlm.agent.spawn('child go')\nchild.wait(300).status"), cell(READ), says("root")],
        child=[
            cell("try: print(rlm.agent.send_to_parent('x'))\nexcept rlm.Error as error: print(error)"),
            says("child"),
        ],
    )
    async with opened(model) as (supervisor, agent):
        root = supervisor.tree.root
        root.inbox = Inbox(limit=1)
        root.inbox.add(InboxEvent("0", "agent.message", "sub-0", 0.0, {}), loud=True, required=False)
        await agent.prompt("root")
    assert model.seen("child", 1) == "resource_exhausted: inbox event limit reached\n"
    assert [line.split()[0] for line in model.seen("root", 2).splitlines()] == ["agent.message", "agent.completed"]
