"""Agents that start agents: real kernels in one worker, a scripted model, a real ledger."""

from __future__ import annotations

import json
from typing import Any

import trio
from harness.actors import Actors, Opened, cell, records, says, silent

from rlm_harness.decisions import ToolPolicy
from rlm_harness.events import Usage
from rlm_harness.model.interface import ModelError, Reply, ToolCall


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


async def test_children_have_children_down_to_the_limit_and_no_deeper(opened: Opened) -> None:
    spawn = "try: print(rlm.agent.spawn('{0} go').result().answer)\nexcept rlm.Error as error: print(error)"
    model = Actors(
        root=[cell(spawn.format("middle")), says("root")],
        middle=[cell(spawn.format("leaf")), says("middle")],
        leaf=[cell(spawn.format("nobody")), cell("print([a.depth for a in rlm.agent.list()])"), says("leaf")],
    )
    async with opened(model, max_depth=2, max_model_calls=1, max_working=1) as (supervisor, agent):
        await agent.prompt("root")
        assert "failed_precondition: depth limit reached" in model.seen("leaf", 1)
        assert [model.seen(task, 1) for task in ("middle", "root")] == ["leaf\n", "middle\n"]
        assert model.most == 1
        middle, leaf = supervisor.tree.root.descendants()
        assert leaf.directory == middle.directory / leaf.id
        assert "rlm.agent.spawn" in str(model.shown["middle"][0][0])
        assert "rlm.agent.spawn" not in str(model.shown["leaf"][0][0])


async def test_sixteen_children_share_one_slot_and_one_place(opened: Opened) -> None:
    parts: dict[str, Any] = {f"c{n}": [cell(f"{n} * 2"), says(f"{n}")] for n in range(16)}
    code = (
        "agents = [rlm.agent.spawn(f'c{n} go') for n in range(16)]\n"
        "print(sorted(int(result.answer) for result in rlm.agent.collect(agents)))"
    )
    model = Actors(root=[cell(code), says("done")], **parts)
    async with opened(model, max_model_calls=1, max_working=1) as (_, agent):
        await agent.prompt("root")
    assert model.seen("root", 1) == f"{list(range(16))}\n"
    assert model.most == 1
    assert [model.seen(f"c{n}", 1) for n in range(16)] == [f"{n * 2}" for n in range(16)]


async def test_collect_gives_results_as_they_come_also_of_those_that_failed(opened: Opened) -> None:
    gate = trio.Event()

    async def late(_: Any) -> Reply:
        await gate.wait()
        return says("late")

    async def fails(_: Any) -> Reply:
        raise ModelError("no such model")

    async def release(_: Any) -> Reply:
        gate.set()
        return says("root")

    gathering = (
        "import asyncio\nlate, bad = [await rlm.agent.spawn(f'{task} go', name=task) for task in ('late', 'bad')]\n"
        "got = []\nasync def gather():\n"
        "    async for r in rlm.agent.collect([late, bad]): got.append((r.name, r.status, r.error))\n"
        "task = asyncio.create_task(gather())\nwhile not got: await asyncio.sleep(0.01)\nprint(got)"
    )
    model = Actors(
        root=[cell(gathering), cell("try: bad.result()\nexcept rlm.Error as e: print(e)"), release],
        late=[late],
        bad=[fails],
    )
    async with opened(model) as (_, agent):
        await agent.prompt("root")
        assert model.seen("root", 1) == "[('bad', 'failed', 'no such model')]\n"
        assert model.seen("root", 2) == "failed_precondition: agent failed: no such model\n"


async def test_a_steered_child_hears_it_before_its_next_call_and_a_sent_message_when_it_answers(
    opened: Opened,
) -> None:
    busy = trio.Event()

    async def first(_: Any) -> Reply:
        await busy.wait()
        return cell("1 + 1")

    async def tell(_: Any) -> Reply:
        await model.calls("child", 1)
        return cell("sent = child.send('at the end'); steered = child.steer('at once')\n(sent != steered, len(sent))")

    async def let_go(_: Any) -> Reply:
        busy.set()
        return cell("child.result().answer")

    model = Actors(
        root=[cell("child = rlm.agent.spawn('child go')"), tell, let_go, says("root")],
        child=[first, says("so far"), says("all done")],
    )
    async with opened(model) as (supervisor, agent):
        await agent.prompt("root")
        assert model.seen("root", 3) == "'all done'"
        (child,) = supervisor.tree.root.children.values()
        assert model.seen("child", 1) == (
            '<agent_input from="parent" agent_id="root" kind="steer">\nat once\n</agent_input>'
        )
        assert 'kind="instruction">\nat the end\n' in model.seen("child", 2)
        told = [record for record in records(child.directory) if record["type"] == "parent_message"]
        assert [record["provenance"]["kind"] for record in told] == ["steer", "instruction"]
        journal = records(child.directory, "inbox.jsonl")
        assert [record["type"] for record in journal] == [
            "instruction",
            "steer",
            "instructions_delivered",
            "instructions_delivered",
        ]
        assert told[0]["event_ids"] == journal[2]["event_ids"] == [journal[1]["id"]]


async def test_a_persistent_child_is_idle_when_it_has_answered_and_a_message_wakes_it(opened: Opened) -> None:
    model = Actors(
        root=[
            cell("child = rlm.agent.spawn('child go', persistent=True, name='helper')\nchild.result().answer"),
            cell("child.send('one'); r = child.result(); print(r.answer, r.status, r.running)"),
            cell("print(rlm.agent.get('helper').info().status, child.cancel().status)"),
            cell("try: child.send('more')\nexcept rlm.Error as error: print(error)"),
            says("root"),
        ],
        child=[cell("x = 7"), says("ready"), cell("x"), says("seven")],
    )
    async with opened(model) as (supervisor, agent):
        await agent.prompt("root")
        assert model.seen("root", 1) == "'ready'"
        assert model.seen("root", 2) == "seven idle False\n"
        assert model.seen("root", 3) == "idle cancelled\n"
        assert model.seen("root", 4) == "failed_precondition: agent is no longer active\n"
        assert model.seen("child", 3) == "7"
        (child,) = supervisor.tree.root.children.values()
        woken = [record for record in records(child.directory) if record["type"] == "user"]
        assert [record["message"]["content"] for record in woken] == ["child go", "one"]
        assert len(woken[1]["event_ids"]) == 1


async def test_names_are_for_good_and_handles_reach_direct_children_only(opened: Opened) -> None:
    attempts = (
        "first = rlm.agent.spawn('child go', name='it'); first.result()\n"
        "def attempt(f):\n    try: print(f())\n    except rlm.Error as error: print(error)\n"
        "attempt(lambda: rlm.agent.spawn('child go', name='it'))\n"
        "attempt(lambda: rlm.agent.spawn('child go', name=first.id))\n"
        "attempt(lambda: rlm.agent.spawn(''))\n"
        "attempt(lambda: rlm.agent.get('nobody'))\n"
        "attempt(lambda: rlm.agent.send_to_parent('hello'))\n"
        "attempt(lambda: first.send('x' * 65_536))\n"
        "attempt(lambda: rlm.agent.get('it').id == rlm.agent.get(first.id).id)\n"
        "[below] = [a for a in rlm.agent.list(recursive=True) if a.depth == 2]\n"
        "attempt(lambda: rlm.agent.get(below.id))\n"
        "attempt(lambda: [a.name for a in rlm.agent.list()])\n"
        "attempt(lambda: rlm.agent.spawn('child go', name='x' * 201))\n"
        "for name in (' ', 'a\\0', 'a\\nb', '\\x1b[2J'): attempt(lambda: rlm.agent.spawn('child go', name=name))"
    )
    model = Actors(
        root=[cell(attempts), says("root")],
        child=[cell("rlm.agent.spawn('below go').result().answer"), says("child")],
        below=[says("below")],
    )
    async with opened(model, max_depth=2) as (_, agent):
        await agent.prompt("root")
    lines = model.seen("root", 1).splitlines()
    assert lines[0] == "invalid_argument: agent name 'it' is already used"
    assert "is already used" in lines[1]
    assert lines[2].startswith("invalid_argument: ")
    assert "$.task" in lines[2]
    assert "$.name" in lines[9]
    assert len(lines) == 14
    for line in lines[10:]:
        assert line.startswith("invalid_argument: an agent's name has 1 to 200 characters")
        assert line.endswith("no line breaks or other control characters")
    assert lines[3] == "not_found: agent is not a direct child of the caller"
    assert lines[4] == "failed_precondition: root agent has no parent"
    assert lines[5] == "failed_precondition: agent is no longer active"
    assert lines[6] == "True"
    assert lines[7] == "not_found: agent is not a direct child of the caller"
    assert lines[8] == "['it']"


async def test_budgets_are_the_trees_and_what_cannot_be_delivered_is_told(opened: Opened) -> None:
    model = Actors(
        root=[
            cell("child = rlm.agent.spawn('child go', persistent=True); child.result().stop"),
            cell(
                "def attempt(f):\n    try: print(f())\n    except rlm.Error as error: print(error)\n"
                "attempt(lambda: rlm.agent.spawn('other go'))\nattempt(lambda: child.send('x'))"
            ),
            says("never asked for"),
        ],
        child=[cell("1", usage=Usage(500, 500)), says("never asked for")],
    )
    async with opened(model, max_tokens=1000) as (supervisor, agent):
        outcome = await agent.prompt("root")
        assert (outcome.stop, outcome.turns) == ("max_tokens", 1)
        (child,) = supervisor.tree.root.children.values()
        assert (child.stop, child.status) == ("max_tokens", "idle")


async def test_a_parent_watches_what_its_child_does(opened: Opened) -> None:
    events = (
        "events = [rlm.inbox.read(e.id) for e in rlm.inbox.list()]\n"
        "ranges = [(e.content['start'], e.content['end']) for e in events if e.subscription_id == steps.id]\n"
        "print({e.type for e in events} == {'watch.agent', 'watch.progress', 'agent.completed'})\n"
        "print(all(one[1] == two[0] for one, two in zip(ranges, ranges[1:])), ranges[-1][1])\n"
        "print({e.content['turns'] for e in events if e.type == 'watch.progress'} <= {2, 3})"
    )

    async def step(_: Any) -> Reply:
        await gate.wait()
        return cell("1")

    async def let_go(_: Any) -> Reply:
        gate.set()
        return cell("child.wait(300).status")

    gate = trio.Event()
    model = Actors(
        root=[
            cell(
                "child = rlm.agent.spawn('child go')\n"
                "steps, turns = rlm.watch.agent(child), rlm.watch.agent(child, every_turns=2)\n"
                "other = rlm.watch.agent(child.id, every_tokens=1)\n"
                "print(other.cancel().status, [w.kind for w in rlm.watch.list()], rlm.watch.get(steps.id).status)"
            ),
            let_go,
            cell(events),
            cell("print([w.status for w in rlm.watch.list()], rlm.watch.agent(child).status)"),
            says("root"),
        ],
        child=[step, cell("2"), says("child")],
    )
    async with opened(model) as (_, agent):
        await agent.prompt("root")
    assert model.seen("root", 1) == "cancelled ['agent', 'progress', 'progress'] active\n"
    assert model.seen("root", 3) == "True\nTrue 7\nTrue\n"
    assert model.seen("root", 4).endswith("completed\n")


async def test_an_agent_has_the_tools_that_were_chosen_and_runs_several_calls_in_order_if_it_may(
    opened: Opened,
) -> None:
    both = [("bash", {"command": "echo one > f"}), ("python", {}), ("bash", {"command": "cat f"})]
    calls = [ToolCall(f"c{n}", name, json.dumps(arguments)) for n, (name, arguments) in enumerate(both)]
    model = Actors(root=[Reply("", calls, "tool_calls"), says("root")])
    async with opened(model, ToolPolicy(("bash",), several=True)) as (_, agent):
        await agent.prompt("root")
    assert [message["content"] for message in model.shown["root"][1][-3:]] == [
        "(no output)",
        "Error: unknown tool 'python'; the tools are bash",
        "one\n",
    ]
    assert "ipython" not in str(model.shown["root"][0])


async def test_a_child_that_waits_for_its_place_can_be_told_things_and_cancelled(opened: Opened) -> None:
    model = Actors(
        root=[
            cell(
                "first, second = rlm.agent.spawn('first go'), rlm.agent.spawn('second go')\n"
                "second.send('hello')\nprint(second.info().status, second.cancel().status, second.info().turns)\n"
                "first.cancel()\nprint(rlm.inbox.list()[0].type)"
            ),
            says("root"),
        ],
        first=[silent],
        second=[],
    )
    async with opened(model, max_working=1) as (_, agent):
        await agent.prompt("root")
    shown = [message["content"] for message in model.shown["root"][1]]
    assert "starting cancelled 0\nagent.delivery_failed\n" in shown


async def test_the_turns_of_all_agents_are_counted_together(opened: Opened) -> None:
    model = Actors(
        root=[cell("print([r.stop for r in rlm.agent.collect([rlm.agent.spawn('child go')])])")],
        child=[cell("1"), cell("2")],
    )
    async with opened(model, max_turns=3) as (supervisor, agent):
        assert (await agent.prompt("root")).stop == "max_turns"
        assert supervisor.budgets.turns == 3
        (child,) = supervisor.tree.root.children.values()
        assert (child.stop, child.turns, child.answer) == ("max_turns", 2, "[no answer: all turns were used up]")


async def test_how_many_agents_there_may_be_is_a_limit(opened: Opened) -> None:
    code = (
        "def attempt(**more):\n    try: return rlm.agent.spawn('child go', **more).result().answer\n"
        "    except rlm.Error as error: return str(error)\n"
        "print(attempt(persistent=True)); print(attempt(persistent=True)); print(attempt()); print(attempt())"
    )
    model = Actors(root=[cell(code), says("root")], child=[says("one"), says("two")])
    async with opened(model, max_persistent=1, max_subagents=2) as (_, agent):
        await agent.prompt("root")
    assert model.seen("root", 1).splitlines() == [
        "one",
        "resource_exhausted: persistent agent limit reached: cancel one first",
        "two",
        "resource_exhausted: subagent call limit reached",
    ]


async def test_a_parent_reads_what_its_child_has_said_and_done(opened: Opened) -> None:
    model = Actors(
        root=[
            cell(
                "child = rlm.agent.spawn('child go', persistent=True); child.result()\n"
                "print([m['role'] for m in child.history().messages])\n"
                "child.send('more'); child.result()\n"
                "print(len(child.history().messages), child.history().user_messages()[1]['message']['content'])"
            ),
            says("root"),
        ],
        child=[cell("1"), says("child"), says("again")],
    )
    async with opened(model) as (_, agent):
        await agent.prompt("root")
    assert model.seen("root", 1) == "['system', 'user', 'assistant', 'tool', 'assistant']\n7 more\n"
