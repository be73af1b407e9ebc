"""Field report B60: requests arrive, their answers do not, again and again; and whatever was asked for happens once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chaos.workers import TOKEN, running_worker
from contract.proxy import Proxy, proxied

import rlm_wire
from rlm_harness.workspace import AgentTools, Workspace
from rlm_wire.errors import SessionLost
from rlm_wire.frames.limits import Limits

TIMES = 50


class Stamp(rlm_wire.Request[int], tag="stamp.next"):
    """What a cell calls: leaves a line, and answers how many there are."""


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@asynccontextmanager
async def agent_behind_a_proxy(
    directory: Path, service: rlm_wire.Service | None = None, limits: Limits | None = None
) -> AsyncIterator[tuple[AgentTools, Proxy]]:
    async with (
        running_worker(directory, "--tcp", "127.0.0.1:0") as worker,
        proxied(worker.url, directory) as proxy,
        Workspace.connect(proxy.url, TOKEN, str(directory), service=service, limits=limits) as workspace,
        workspace.agent() as agent,
    ):
        yield agent, proxy


async def test_b60_a_command_runs_once_and_its_caller_gets_its_result(tmp_path: Path) -> None:
    async with agent_behind_a_proxy(tmp_path) as (agent, proxy):
        for number in range(1, TIMES + 1):
            proxy.cut_before_next("to client")
            result = await agent.bash("echo x >> f; wc -l < f")
            assert int(result.output.text) == number
        assert proxy.made == TIMES + 1


async def test_b60_a_job_is_started_once(tmp_path: Path) -> None:
    async with agent_behind_a_proxy(tmp_path) as (agent, proxy):
        jobs = []
        for _ in range(TIMES):
            proxy.cut_before_next("to client")
            jobs.append((await agent.jobs.start("echo x >> f")).id)
        for job in jobs:
            await agent.jobs.result(job)
        assert lines(tmp_path / "f") == TIMES
        assert jobs == [info.id for info in await agent.jobs.list()]
        assert proxy.made == TIMES + 1


async def test_b60_an_edit_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x\nend")
    async with agent_behind_a_proxy(tmp_path) as (agent, proxy):
        for number in range(TIMES):
            proxy.cut_before_next("to client")
            edited = await agent.edit("f", "end", "x\nend")
            assert edited.line == number + 2
        assert (tmp_path / "f").read_text() == "x\n" * (TIMES + 1) + "end"
        assert proxy.made == TIMES + 1


async def test_b60_a_callback_from_a_cell_runs_once_and_the_cell_gets_its_result(tmp_path: Path) -> None:
    service = rlm_wire.Service()
    cut: list[Callable[[], None]] = []

    @service.handle(Stamp)
    def stamp(request: Stamp) -> int:
        with (tmp_path / "f").open("a") as file:
            file.write("x\n")
        cut[0]()
        return lines(tmp_path / "f")

    async with agent_behind_a_proxy(tmp_path, service) as (agent, proxy):
        cut.append(lambda: proxy.cut_before_next("to server"))
        cell = await agent.ipython(f"repr([await rlm.call('stamp.next') for _ in range({TIMES})])")
        assert cell.result == repr(str(list(range(1, TIMES + 1))))
        assert lines(tmp_path / "f") == TIMES
        assert proxy.made == TIMES + 1


async def test_b60_without_a_lease_the_outcome_is_unknown_and_nothing_runs_again(tmp_path: Path) -> None:
    """A reply that cannot come any more."""
    async with running_worker(tmp_path, "--tcp", "127.0.0.1:0") as worker, proxied(worker.url, tmp_path) as proxy:
        for number in range(1, 11):
            async with (
                Workspace.connect(proxy.url, TOKEN, limits=Limits(lease=0)) as workspace,
                workspace.agent() as agent,
            ):
                proxy.cut_before_next("to client")
                with pytest.raises(SessionLost) as caught:
                    await agent.bash("echo x >> f")
                assert caught.value.fate == "maybe_executed"
                assert lines(tmp_path / "f") == number
        assert proxy.made == 10
