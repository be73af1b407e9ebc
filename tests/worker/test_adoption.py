"""A workspace that a second session adopts from the first, which may be alive or not."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

import rlm_wire
from rlm_wire.methods.events import FollowEvents
from rlm_wire.methods.jobs import ListJobs, RunJob
from rlm_wire.methods.kernels import Execute
from rlm_wire.methods.processes import CloseWorkspace, ListProcesses
from rlm_wire.methods.sessions import AdoptWorkspace, KeptAgent, OpenAgent, OpenWorkspace
from rlm_wire.methods.tools import Bash
from rlm_worker.environment import workspace_environment
from rlm_worker.kernel import open_kernel_host
from rlm_worker.processes import Reaper
from rlm_worker.service import worker_service
from rlm_worker.sessions import Worker

numbers = itertools.count()

SECRET = "a secret that nobody guesses"


@pytest.fixture
async def url(reaper: Reaper, tmp_path: Path) -> AsyncIterator[str]:
    env = workspace_environment(os.environ)
    async with open_kernel_host(reaper, env=env) as host:
        service = worker_service(Worker(reaper, host, str(tmp_path), env))
        async with rlm_wire.serve(f"memory:adoption-{next(numbers)}", service) as server:
            yield server.urls[0]


@asynccontextmanager
async def opened(url: str, agent: str = "a") -> AsyncIterator[tuple[rlm_wire.Peer, str]]:
    """A harness with a workspace and an agent in it, and the workspace's id."""
    async with rlm_wire.connect(url) as peer:
        info = await peer.call(OpenWorkspace(env={"OURS": "1"}, secret=SECRET))
        await peer.call(OpenAgent(agent))
        yield peer, info.workspace


async def refused(peer: rlm_wire.Peer, request: rlm_wire.Request[object]) -> str:
    with pytest.raises(rlm_wire.CallError) as error:
        await peer.call(request)
    return error.value.code


async def test_an_adopted_workspace_is_as_it_was(url: str) -> None:
    async with opened(url) as (former, workspace), rlm_wire.connect(url) as peer:
        await former.call(Execute("a", "x = 6 * 7"))
        await former.call(RunJob("a", "echo out; exec sleep 1000", yield_after=0))
        adopted = await peer.call(AdoptWorkspace(workspace, SECRET))
        assert (adopted.info.workspace, adopted.agents) == (workspace, [KeptAgent("a", has_kernel=True)])
        assert (await peer.call(Execute("a", "x"))).result == "42"
        assert (await peer.call(Bash("a", "echo $OURS"))).output.text == "1\n"
        (job,) = await peer.call(ListJobs("a"))
        assert job.status == "running"
        await former.wait_closed()
        with pytest.raises(rlm_wire.SessionLost, match="another process of the harness has adopted"):
            await former.call(ListProcesses())


async def test_the_workspace_ends_with_whoever_has_it_and_not_with_whoever_opened_it(url: str) -> None:
    async with rlm_wire.connect(url) as peer:
        async with opened(url) as (former, workspace):
            await former.call(Execute("a", "x = 1"))
            await peer.call(AdoptWorkspace(workspace, SECRET))
        assert (await peer.call(Execute("a", "x"))).result == "1"
        receipt = await peer.call(CloseWorkspace())
        assert receipt.confirmed
        assert [process.kind for process in receipt.stopped] == ["kernel"]


async def test_what_runs_for_the_former_is_stopped_before_the_adopter_hears(url: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    async with opened(url) as (former, workspace), rlm_wire.connect(url) as peer, trio.open_nursery() as nursery:

        async def lose(request: rlm_wire.Request[object]) -> None:
            with pytest.raises(rlm_wire.SessionLost, match="adopted"):
                await former.call(request)

        nursery.start_soon(lose, Bash("a", "echo >begun; exec sleep 1000"))
        nursery.start_soon(lose, Execute("a", "x = 1; open('begun', 'w').close(); import time; time.sleep(1000)"))
        for _ in range(2):
            await trio.to_thread.run_sync((tmp_path / "begun").read_bytes)
        await peer.call(AdoptWorkspace(workspace, SECRET))
        processes = (await peer.call(ListProcesses())).processes
        assert [process.kind for process in processes] == ["kernel"]
        assert (await peer.call(Execute("a", "x"))).result == "1"


async def test_callbacks_go_to_the_adopter(url: str) -> None:
    service = rlm_wire.Service()

    class Who(rlm_wire.Request[str], tag="test.who"):
        pass

    @service.handle(Who)
    def who(request: Who) -> str:
        return "the adopter"

    async with opened(url) as (former, workspace), rlm_wire.connect(url, service) as peer:
        cell = await former.call(Execute("a", "await rlm.call('test.who')"))
        assert cell.status == "error"
        await peer.call(AdoptWorkspace(workspace, SECRET))
        assert (await peer.call(Execute("a", "await rlm.call('test.who')"))).result == "'the adopter'"


async def test_events_go_on_from_the_number_that_the_adopter_is_told(url: str) -> None:
    async with opened(url) as (former, workspace), rlm_wire.connect(url) as peer:
        await former.call(RunJob("a", "true", yield_after=0))
        async with former.open(FollowEvents()) as events:
            seen = await anext(aiter(events))
        adopted = await peer.call(AdoptWorkspace(workspace, SECRET))
        assert adopted.last_event >= seen.number
        await peer.call(RunJob("a", "true", yield_after=0))
        async with peer.open(FollowEvents(adopted.last_event)) as events:
            assert (await anext(aiter(events))).number == adopted.last_event + 1


async def test_only_the_secret_opens_the_door(url: str) -> None:
    async with opened(url) as (former, workspace), rlm_wire.connect(url) as peer:
        for request in (
            AdoptWorkspace(workspace, SECRET + "!"),
            AdoptWorkspace(workspace, ""),
            AdoptWorkspace("", ""),
            AdoptWorkspace("0" * 32, SECRET),
        ):
            assert await refused(peer, request) == "not_found"
        assert not former.closed
        await peer.call(OpenAgent("b"))
        assert await refused(peer, AdoptWorkspace(workspace, SECRET)) == "failed_precondition"


async def test_without_a_secret_nobody_can_adopt_a_workspace(url: str) -> None:
    async with rlm_wire.connect(url) as former, rlm_wire.connect(url) as peer:
        assert (await former.call(OpenWorkspace())).workspace == ""
        for secret in ("short", "x" * 201):
            assert await refused(former, OpenWorkspace(secret=secret)) == "invalid_argument"
        first = (await former.call(OpenWorkspace(secret=SECRET))).workspace
        second = (await former.call(OpenWorkspace(secret=SECRET))).workspace
        assert await refused(peer, AdoptWorkspace(first, SECRET)) == "not_found"
        await peer.call(AdoptWorkspace(second, SECRET))


async def test_a_workspace_that_was_closed_cannot_be_adopted(url: str) -> None:
    async with opened(url) as (former, workspace), rlm_wire.connect(url) as peer:
        await former.call(CloseWorkspace())
        assert await refused(peer, AdoptWorkspace(workspace, SECRET)) == "not_found"


async def test_a_workspace_is_handed_on_as_often_as_its_harness_dies(url: str) -> None:
    async with AsyncExitStack() as harnesses:
        former, workspace = await harnesses.enter_async_context(opened(url))
        await former.call(Execute("a", "x = 0"))
        for number in range(1, 4):
            peer = await harnesses.enter_async_context(rlm_wire.connect(url))
            await peer.call(AdoptWorkspace(workspace, SECRET))
            assert (await peer.call(Execute("a", "x += 1; x"))).result == str(number)


async def test_one_that_adopts_another_gives_its_own_up(url: str) -> None:
    async with opened(url) as (_, workspace), rlm_wire.connect(url) as peer, rlm_wire.connect(url) as third:
        own = (await peer.call(OpenWorkspace(secret=SECRET))).workspace
        await peer.call(AdoptWorkspace(own, SECRET))
        await peer.call(AdoptWorkspace(workspace, SECRET))
        assert await refused(third, AdoptWorkspace(own, SECRET)) == "not_found"
        assert await refused(peer, AdoptWorkspace(workspace, SECRET)) == "failed_precondition"


async def test_one_that_adopts_what_it_is_losing_holds_up_nobody(url: str) -> None:
    async with rlm_wire.connect(url) as first, rlm_wire.connect(url) as second:
        workspace = (await first.call(OpenWorkspace(secret=SECRET))).workspace
        outcomes: list[str] = []

        async def adopt(peer: rlm_wire.Peer) -> None:
            try:
                await peer.call(AdoptWorkspace(workspace, SECRET))
            except rlm_wire.SessionLost:
                outcomes.append("lost")
            else:
                outcomes.append("adopted")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(adopt, second)
            nursery.start_soon(adopt, first)
        assert "adopted" in outcomes
