"""The whole service in one process, over an in-memory link: sessions, agents, and what ends with them."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import rlm_wire
from rlm_wire.methods.kernels import Execute
from rlm_wire.methods.processes import CloseWorkspace
from rlm_wire.methods.sessions import CloseAgent, OpenAgent, OpenWorkspace
from rlm_wire.methods.tools import Bash, Edit, Fetch, OutputChunk
from rlm_worker.environment import workspace_environment
from rlm_worker.kernel import open_kernel_host
from rlm_worker.processes import Reaper, process_table
from rlm_worker.service import worker_service
from rlm_worker.sessions import Worker

numbers = itertools.count()


@pytest.fixture
async def url(reaper: Reaper, tmp_path: Path) -> AsyncIterator[str]:
    """A worker in this process, which serves at that address."""
    env = workspace_environment(os.environ)
    async with open_kernel_host(reaper, env=env) as host:
        service = worker_service(Worker(reaper, host, str(tmp_path), env))
        async with rlm_wire.serve(f"memory:worker-{next(numbers)}", service) as server:
            yield server.urls[0]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[rlm_wire.Peer, str]]:
    async with rlm_wire.connect(url) as peer:
        await peer.call(OpenWorkspace())
        yield peer, (await peer.call(OpenAgent())).agent


async def refused(peer: rlm_wire.Peer, request: rlm_wire.Request[object]) -> str:
    with pytest.raises(rlm_wire.CallError) as error:
        await peer.call(request)
    return error.value.code


async def test_a_workspace_says_where_it_is(url: str, tmp_path: Path) -> None:
    async with rlm_wire.connect(url) as peer:
        info = await peer.call(OpenWorkspace())
        assert (info.cwd, info.pid) == (str(tmp_path), os.getpid())
        assert info.worker.startswith("rlm-worker ")


async def test_a_session_goes_from_agent_to_receipt_also_without_opening_the_workspace(url: str) -> None:
    async with rlm_wire.connect(url) as peer:
        agent = (await peer.call(OpenAgent())).agent
        assert (await peer.call(Bash(agent, "echo hi"))).output.text == "hi\n"
        assert await refused(peer, OpenWorkspace()) == "failed_precondition"
        for name in (" ", "a\0", "a\nb", "x" * 201):
            with pytest.raises(rlm_wire.CallError, match=r"an agent's name has 1 to 200 .* no line breaks") as caught:
                await peer.call(OpenAgent(name))
            assert caught.value.code == "invalid_argument"
        await peer.call(CloseAgent(agent))
        assert await refused(peer, Bash(agent, "echo hi")) == "not_found"
        assert (await peer.call(CloseWorkspace())).confirmed
        assert await refused(peer, OpenAgent()) == "failed_precondition"


async def test_a_deadline_of_the_call_cancels_a_command_and_only_its_own_timeout_is_one(url: str) -> None:
    async with opened(url) as (peer, agent), peer.open(Bash(agent, "echo up; sleep 1000"), timeout=1.0) as call:
        result = await call.result()
        assert (result.cancelled, result.timed_out) == (True, False)
        result = await peer.call(Bash(agent, "sleep 1000", timeout=0.1))
        assert (result.cancelled, result.timed_out) == (False, True)


async def test_directory_and_environment_of_a_session_are_its_own(url: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with rlm_wire.connect(url) as first, opened(url) as (second, other):
        assert (await first.call(OpenWorkspace("sub", {"X": "of the session"}))).cwd == str(tmp_path / "sub")
        agent = (await first.call(OpenAgent("a"))).agent
        result = await first.call(Bash(agent, "pwd; echo $X $Y", env={"Y": "of the call"}))
        assert result.output.text == f"{tmp_path}/sub\nof the session of the call\n"
        assert (await first.call(Bash(agent, "pwd", cwd=".."))).output.text == f"{tmp_path}\n"
        assert (await second.call(Bash(other, "pwd; echo $X"))).output.text == f"{tmp_path}\n\n"


async def test_what_cannot_be_opened_or_run_is_refused(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with rlm_wire.connect(url) as peer:
        assert await refused(peer, OpenWorkspace("missing")) == "not_found"
        assert await refused(peer, OpenWorkspace("file")) == "not_found"
        assert await refused(peer, OpenWorkspace("a" * 300)) == "not_found"
        assert await refused(peer, OpenWorkspace("a" * 5000)) == "invalid_argument"
        assert await refused(peer, OpenWorkspace("a\0b")) == "invalid_argument"
        assert await refused(peer, OpenWorkspace(env={"A=B": ""})) == "invalid_argument"
        assert await refused(peer, OpenWorkspace(env={"A": "\0"})) == "invalid_argument"
        assert (await peer.call(OpenAgent("a"))).agent == "a"
        assert await refused(peer, OpenAgent("a")) == "failed_precondition"
        assert await refused(peer, OpenAgent(" ")) == "invalid_argument"
        assert await refused(peer, OpenWorkspace()) == "failed_precondition"
        assert await refused(peer, Bash("nobody", "true")) == "not_found"
        assert await refused(peer, Bash("a", "")) == "invalid_argument"
        assert await refused(peer, Bash("a", "echo a\0b")) == "invalid_argument"
        assert await refused(peer, Bash("a", "true", env={"": ""})) == "invalid_argument"
        assert await refused(peer, Bash("a", "true", cwd="missing")) == "not_found"
        assert await refused(peer, Bash("a", "true", cwd="a/../" * 1000)) == "invalid_argument"


async def test_all_four_tools_answer(url: str, tmp_path: Path) -> None:
    async with opened(url) as (peer, agent):
        (tmp_path / "a.txt").write_text("old\n")
        assert (await peer.call(Edit(agent, "a.txt", "old", "new"))).path == str(tmp_path / "a.txt")
        assert (await peer.call(Bash(agent, "cat a.txt"))).output.text == "new\n"
        cell = await peer.call(Execute(agent, "print(open('a.txt').read()); 6 * 7"))
        assert (cell.status, cell.result, cell.output.text) == ("ok", "42", "new\n\n")
        assert await refused(peer, Fetch(agent, "file:///etc/passwd")) == "invalid_argument"


async def test_b67_an_agents_directory_may_vanish_under_it(url: str, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    async with rlm_wire.connect(url) as peer:
        await peer.call(OpenWorkspace("gone"))
        agent = (await peer.call(OpenAgent())).agent
        (tmp_path / "gone").rmdir()
        result = await peer.call(Bash(agent, "pwd; ls -A"))
        fallback = Path(result.output.text.strip())
        assert fallback.is_dir()
        assert "gone" in result.notices[0]
        await peer.call(Bash(agent, f"mkdir {tmp_path}/gone"))
        assert (await peer.call(Bash(agent, "pwd"))).output.text == f"{tmp_path}/gone\n"


async def test_live_output_and_partial_results_of_a_cancelled_call(url: str) -> None:
    async with opened(url) as (peer, agent), peer.open(Bash(agent, "echo $$; sleep 1000")) as call:
        chunk = await anext(aiter(call))
        call.cancel("enough")
        result = await call.result()
        assert (result.cancelled, result.output.head) == (True, chunk.data)
        assert process_table.row(int(chunk.data)) is None


async def test_closing_an_agent_ends_its_commands_and_kernel_and_no_one_elses(
    url: str, end: Callable[[int], None]
) -> None:
    errors = []
    seen: dict[str, int] = {}

    async with opened(url) as (peer, first):
        second = (await peer.call(OpenAgent())).agent

        async def command(agent: str) -> None:
            try:
                async with peer.open(Bash(agent, "echo $$; sleep 1000")) as call:
                    async for chunk in call:
                        seen[agent] = int(chunk.data)
                        both.set() if len(seen) == 2 else None
                    await call.result()
            except rlm_wire.CallError as error:
                errors.append((agent, error.code))

        both = trio.Event()
        kernel = int((await peer.call(Execute(first, "import os; os.getpid()"))).result or 0)
        left = await peer.call(Bash(first, "sleep 1000 > /dev/null & echo $!"))
        end(int(left.output.text))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(command, first)
            nursery.start_soon(command, second)
            await both.wait()
            closed = await peer.call(CloseAgent(first))
            assert closed.stopped == 2
            assert left.output.text.strip() in closed.notices[0]
            rows = process_table.table()
            assert kernel not in rows
            assert seen[first] not in rows
            assert seen[second] in rows
            assert await refused(peer, Bash(first, "true")) == "not_found"
            await peer.call(CloseAgent(second))
    assert sorted(errors) == sorted([(first, "cancelled"), (second, "cancelled")])


async def test_the_end_of_a_session_ends_what_it_runs(url: str, wait_for_end: Callable[[int], bool]) -> None:
    async with opened(url) as (peer, agent):
        pids = [int((await peer.call(Execute(agent, "import os; os.getpid()"))).result or 0)]
        async with peer.open(Bash(agent, "echo $$; sleep 1000")) as call:
            pids.append(int((await anext(aiter(call))).data))
            peer.lose(rlm_wire.SessionLost("the cable was cut"))
            with pytest.raises(rlm_wire.SessionLost):
                await call.result()
    for pid in pids:
        assert await trio.to_thread.run_sync(wait_for_end, pid)


async def test_a_receiver_that_takes_nothing_does_not_hold_a_command_up(url: str) -> None:
    async with opened(url) as (peer, agent), peer.open(Bash(agent, "seq 1 1500000")) as call:
        first = await anext(aiter(call))
        assert isinstance(first, OutputChunk)
        result = await call.result()
        assert result.output.lines == 1_500_000
