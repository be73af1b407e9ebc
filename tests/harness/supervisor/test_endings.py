"""How agents end, and what is below them: cancelled, with their parents, with their worker or their session."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from harness.actors import Actors, Opened, cell, records, says, silent

import rlm_wire
from rlm_harness.events import TurnStarted
from rlm_harness.model.interface import Reply
from rlm_harness.supervisor import lifecycle
from rlm_harness.supervisor.tree import Tree
from rlm_harness.workspace import CLOSE_TIMEOUT, Workspace, local_worker_url
from rlm_wire.broker.calls import DEADLINE_GRACE
from rlm_wire.errors import CallError, SessionLost
from rlm_wire.methods.sessions import AgentClosed, CloseAgent


async def test_cancelling_a_child_ends_all_below_it_in_the_workspace_too(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    below = "open('up/{0}', 'w').close(); import subprocess; subprocess.run(['sleep', '1000.5'])"
    middle = (
        "a, b = rlm.agent.spawn('a go'), rlm.agent.spawn('b go', persistent=True); b.result()\n"
        "rlm.shell.start('exec sleep 1000.5')\n" + below.format("middle")
    )
    root = (
        "import time, os\nchild = rlm.agent.spawn('middle go', name='m')\n"
        "while len(os.listdir('up')) < 2: time.sleep(0.01)\n"
        "info = child.cancel(); print(info.status, info.cleanup_error)\n"
        "print([(a.depth, a.status) for a in rlm.agent.list(recursive=True)])\n"
        "!pgrep -f 'sleep 1000.[5]'"
    )
    model = Actors(
        root=[cell(root), says("root")],
        middle=[cell(middle)],
        a=[cell(below.format("a"))],
        b=[says("idle")],
    )
    async with opened(model, max_depth=2) as (_, agent):
        await agent.prompt("root")
    assert model.seen("root", 1) == ("cancelled None\n[(1, 'cancelled'), (2, 'cancelled'), (2, 'cancelled')]\n")


async def test_an_agent_that_has_answered_takes_those_below_it_along(opened: Opened) -> None:
    model = Actors(
        root=[
            cell("rlm.agent.spawn('middle go').result().answer"),
            cell("print([(a.depth, a.status) for a in rlm.agent.list(recursive=True)])"),
            says("root"),
        ],
        middle=[cell("leaf = rlm.agent.spawn('leaf go')"), says("middle")],
        leaf=[silent],
    )
    async with opened(model, max_depth=2) as (_, agent):
        await agent.prompt("root")
    assert model.seen("root", 1) == "'middle'"
    assert model.seen("root", 2) == "[(1, 'completed'), (2, 'cancelled')]\n"


async def test_a_cancelled_prompt_leaves_the_children_at_work_and_the_end_of_the_session_does_not(
    opened: Opened, events: Any
) -> None:
    gate = trio.Event()

    async def late(_: Any) -> Reply:
        await gate.wait()
        return says("one is done")

    model = Actors(
        root=[cell("one, two = rlm.agent.spawn('one go'), rlm.agent.spawn('two go'); two.result()")],
        one=[late],
        two=[silent],
    )
    async with opened(model) as (supervisor, agent):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.prompt, "root")
            await model.calls("one", 1)
            await model.calls("two", 1)
            nursery.cancel_scope.cancel()
        one, two = supervisor.tree.root.children.values()
        assert (one.status, two.status) == ("running", "running")
        gate.set()
        await one.ended.wait()
        assert (one.status, supervisor.tree.root.inbox.unread) == ("completed", 1)
        model.parts["again"] = [says("root again")]
        model.shown["again"] = []
        await agent.prompt("again")
        assert 'unread="1"' in model.seen("again")
    assert (two.status, two.ended.is_set()) == ("cancelled", True)


async def test_a_worker_that_dies_ends_all_agents_and_nothing_hangs(opened: Opened, tmp_path: Path) -> None:
    async def kill(_: Any) -> Reply:
        await model.calls("child", 2)
        os.kill(supervisor.workspace.info.pid, signal.SIGKILL)
        return cell("1")

    model = Actors(
        root=[cell("child = rlm.agent.spawn('child go')"), kill],
        child=[cell("1"), cell("import time; time.sleep(1000)")],
    )
    async with opened(model, url=local_worker_url()) as (supervisor, agent):
        with pytest.raises(SessionLost):
            await agent.prompt("root")
        (child,) = supervisor.tree.root.children.values()
        await child.ended.wait()
        assert (child.status, child.settled_at is not None) == ("failed", True)
        assert records(child.directory)[-2]["type"] == "prompt_rollback"


async def test_a_display_that_nobody_reads_any_more_ends_all_agents_with_one_error(opened: Opened, events: Any) -> None:
    gone = False

    async def emit(event: Any) -> None:
        nonlocal gone
        gone = gone or (isinstance(event, TurnStarted) and bool(event.agent))
        if gone:
            raise BrokenPipeError

    model = Actors(root=[cell("rlm.agent.spawn('one go'); rlm.agent.spawn('two go').result()")])
    events.emit = emit
    with pytest.raises(BrokenPipeError):
        async with opened(model) as (supervisor, agent):
            await agent.prompt("root")
    assert all(child.ended.is_set() for child in supervisor.tree.root.children.values())


async def test_a_child_does_not_belong_to_the_cell_that_has_started_it(opened: Opened) -> None:
    scopes = []

    async def look(_: Any) -> Reply:
        scopes.append(rlm_wire.current_scope.get())
        return says("child")

    model = Actors(root=[cell("rlm.agent.spawn('child go').result().answer"), says("root")], child=[look])
    async with opened(model) as (_, agent):
        await agent.prompt("root")
    assert scopes == [None]
    assert "send_to_parent" in str(model.shown["child"][0][0])
    assert "send_to_parent" not in str(model.shown["root"][0][0])


class StubbornWorkspace:
    """A workspace whose agents end, and then say that they have not."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workspace, name)

    @asynccontextmanager
    async def agent(self, name: str, **more: Any) -> AsyncIterator[Any]:
        async with self._workspace.agent(name, **more) as tools:
            yield tools
        raise CallError("unavailable", "the reaper does not answer")


async def test_what_could_not_be_cleaned_up_hides_no_answer_and_is_tried_again(opened: Opened) -> None:
    model = Actors(
        root=[
            cell("child = rlm.agent.spawn('child go')\nprint(child.result().answer, '|', child.info().cleanup_error)"),
            cell("print(child.cancel().cleanup_error, child.info().status)"),
            says("root"),
        ],
        child=[says("seven")],
    )
    async with opened(model) as (supervisor, agent):
        supervisor.workspace = StubbornWorkspace(supervisor.workspace)
        await agent.prompt("root")
    assert model.seen("root", 1) == "seven | unavailable: the reaper does not answer\n"
    assert model.seen("root", 2) == "None completed\n"


async def test_cleaning_up_is_bounded_although_the_worker_does_not_answer(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    service, asked = rlm_wire.Service(), []

    @service.handle(CloseAgent)
    async def close_agent(request: CloseAgent) -> AgentClosed:
        asked.append(request.agent)
        with trio.CancelScope(shield=True):
            await trio.sleep(1000)
        return AgentClosed()

    tree = Tree(tmp_path, "")
    child = tree.add(tree.root, "go", None, persistent=False)
    child.cleanup_error = "the reaper does not answer"
    child.ended.set()
    async with rlm_wire.serve("memory:stuck", service), rlm_wire.connect("memory:stuck") as peer:
        supervisor: Any = SimpleNamespace(workspace=SimpleNamespace(peer=peer))
        with trio.fail_after(CLOSE_TIMEOUT + DEADLINE_GRACE + 1):
            await lifecycle.cancel(supervisor, child)
    assert asked == [child.id]
    assert child.cleanup_error == "its end in the workspace was not confirmed in time"
