"""A worker that is gone for good: one outcome, which is not the agent's, told wherever somebody may look."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
from chaos.workers import Watched, Worker, running_worker

import rlm_harness
import rlm_wire
from rlm_harness.workspace import CLOSE_TIMEOUT, AgentTools, Workspace
from rlm_wire.broker.calls import DEADLINE_GRACE
from rlm_wire.errors import SessionLost
from rlm_wire.frames.limits import Limits
from rlm_wire.methods.processes import CloseWorkspace, Receipt
from rlm_wire.methods.sessions import AgentClosed, AgentOpened, CloseAgent, OpenAgent, OpenWorkspace, WorkspaceInfo
from rlm_worker.processes import process_table

SOON = Limits(lease=1)

DIES_AT_ONCE = """
import os, rlm_wire, trio
from rlm_wire.methods.sessions import OpenWorkspace
service = rlm_wire.Service()
@service.handle(OpenWorkspace)
def end(request: OpenWorkspace): os._exit(1)
async def main():
    async with rlm_wire.serve("stdio:", service) as server: await server.wait_closed()
trio.run(main)
"""


class Run:
    """A running `rlm-harness run --json`."""

    def __init__(self, process):
        self.process = process
        self.events = []
        self._rest = b""

    async def wait_for(self, name):
        while not (self.events and self.events[-1]["event"] == name):
            while b"\n" not in self._rest:
                received = await self.process.stdout.receive_some()
                assert received, self.events
                self._rest += received
            line, self._rest = self._rest.split(b"\n", 1)
            self.events.append(json.loads(line))
        return self.events[-1]


@pytest.fixture
async def start(command):
    async with trio.open_nursery() as nursery:

        async def start(*more):
            run = partial(
                trio.run_process, command.arguments("--json", *more), env=command.environment(), check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, capture_stderr=True,
            )  # fmt: skip
            return Run(await nursery.start(run))

        yield start
        nursery.cancel_scope.cancel()


@pytest.fixture
async def worker(tmp_path):
    async with running_worker(tmp_path, "--unix", str(tmp_path / "socket"), "--lease", "1") as worker:
        yield worker


def check_told(run, ended, calls, reason):
    """The same in the event, in the ledger and in meta.json."""
    assert (ended["stop"], ended["answer"]) == ("workspace_lost", "")
    assert ended["lost"] == calls
    assert "no fault of the agent's" in ended["message"]
    assert reason in ended["message"]
    for call in calls:
        assert f"{call['method']} ({call['fate']})" in ended["message"]
    records = [json.loads(line) for line in Path(ended["ledger"]).read_text().splitlines()]
    assert [record["type"] for record in records][-3:] == ["prompt_rollback", "context_window", "workspace_lost"]
    assert records[-3]["reason"] == "workspace_lost"
    assert records[-1]["calls"] == calls
    assert reason in records[-1]["reason"]
    meta = json.loads(Path(ended["ledger"]).with_name("meta.json").read_text())
    assert (meta["status"], meta["lost"], meta["message"]) == ("workspace_lost", calls, ended["message"])


async def test_a_worker_that_is_gone_beyond_the_lease_ends_the_run(model_server, script, worker, start):
    model_server.answers = [script.calls("bash", {"command": "echo up; sleep 1000"})]
    run = await start("--workspace", worker.url)
    await run.wait_for("tool_output")
    await worker.end(signal.SIGKILL)
    await run.wait_for("reconnecting")
    ended = await run.wait_for("session_ended")
    assert await run.process.wait() == 3
    check_told(run, ended, [{"method": "tools.bash", "fate": "executed"}], "could not be resumed within 1 s")


async def test_a_worker_that_is_a_new_process_ends_the_run_at_once(model_server, script, tmp_path, start):
    async with running_worker(tmp_path, "--unix", str(tmp_path / "socket")) as worker:
        model_server.answers = [script.calls("bash", {"command": "echo $$ > running; sleep 1000"})]
        run = await start("--workspace", worker.url, "--cwd", str(tmp_path))
        while not (tmp_path / "running").exists():
            await trio.lowlevel.checkpoint()
        await worker.end(signal.SIGKILL)
        await worker.start()
        ended = await run.wait_for("session_ended")
        assert await run.process.wait() == 3
        check_told(run, ended, [{"method": "tools.bash", "fate": "maybe_executed"}], "no such session")


async def test_an_own_worker_that_dies_ends_the_run(model_server, script, start):
    model_server.answers = [script.calls("ipython", {"code": "print('up')\nimport time\ntime.sleep(1000)"})]
    run = await start()
    await run.wait_for("tool_output")
    (child,) = [row.pid for row in process_table.table().values() if row.parent == run.process.pid]
    os.kill(child, signal.SIGKILL)
    ended = await run.wait_for("session_ended")
    assert await run.process.wait() == 3
    check_told(run, ended, [{"method": "kernel.execute", "fate": "executed"}], "killed by signal 9")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_model_that_is_thinking_is_not_waited_for(model_server, script, worker, start, number):
    thinking = script.says("")
    thinking.data, thinking.stall = script.events(script.delta(content="Hm"), end=False, done=False), True
    model_server.answers = [thinking]
    run = await start("--workspace", worker.url)
    await run.wait_for("text_delta")
    await worker.end(number)
    ended = await run.wait_for("session_ended")
    assert await run.process.wait() == 3
    check_told(run, ended, [], "the peer ended the session" if number == signal.SIGTERM else "within 1 s")


async def test_b62_a_harness_that_was_stopped_for_too_long_finds_its_workspace_cleaned_up(
    model_server, script, tmp_path, start
):
    socket, bounds = str(tmp_path / "socket"), ("--lease", "2", "--silence", "2")
    async with running_worker(tmp_path, "--unix", socket, *bounds) as worker:
        model_server.answers = [script.calls("bash", {"command": "echo $$; exec sleep 1000"})]
        run = await start("--workspace", worker.url)
        pid = int((await run.wait_for("tool_output"))["text"])
        with Watched(pid) as command:
            os.kill(run.process.pid, signal.SIGSTOP)
            await command.ended()
            os.kill(run.process.pid, signal.SIGCONT)
        ended = await run.wait_for("session_ended")
        assert await run.process.wait() == 3
        check_told(run, ended, [{"method": "tools.bash", "fate": "executed"}], "no such session")


async def test_a_worker_that_is_lost_while_it_is_opened_is_one_line_and_the_same_code(command):
    done = await command.run("--workspace", f"stdio:{shlex.join([sys.executable, '-c', DIES_AT_ONCE])}")
    assert (done.returncode, done.stderr.count(b"\n")) == (3, 1)
    assert b"the workspace was lost while it was being opened" in done.stderr
    assert b"exit status 1" in done.stderr


async def test_leaving_is_bounded_although_the_worker_does_not_answer(autojump_clock: trio.testing.MockClock) -> None:
    service = rlm_wire.Service()

    @service.handle(OpenWorkspace)
    def open_workspace(request: OpenWorkspace) -> WorkspaceInfo:
        return WorkspaceInfo("/", "a stuck worker", 1, "", "")

    @service.handle(OpenAgent)
    def open_agent(request: OpenAgent) -> AgentOpened:
        return AgentOpened("a")

    @service.handle(CloseAgent)
    async def close_agent(request: CloseAgent) -> AgentClosed:
        with trio.CancelScope(shield=True):
            await trio.sleep(1000)
        return AgentClosed()

    @service.handle(CloseWorkspace)
    async def close_workspace(request: CloseWorkspace) -> Receipt:
        with trio.CancelScope(shield=True):
            await trio.sleep(1000)
        return Receipt(confirmed=True)

    async with rlm_wire.serve("memory:stuck", service):
        with trio.fail_after(2 * (CLOSE_TIMEOUT + DEADLINE_GRACE) + 1):
            async with Workspace.connect("memory:stuck") as workspace:
                async with workspace.agent() as agent:
                    pass
                assert agent.closed is None
        assert workspace.receipt is not None
        assert (workspace.receipt.confirmed, workspace.receipt.retryable) == (False, True)


async def test_an_embedding_program_gets_one_exception_with_what_was_open(worker: Worker) -> None:
    fates: dict[str, str] = {}

    async def make(name: str, agent: AgentTools, begun: trio.Event) -> None:
        with pytest.raises(SessionLost) as caught:
            await agent.bash(f"echo {name}; sleep 1000", on_output=lambda _: begun.set())
        fates[name] = caught.value.fate

    async with (
        Workspace.connect(worker.url, limits=SOON) as workspace,
        workspace.agent() as agent,
        trio.open_nursery() as nursery,
    ):

        async def until_lost() -> None:
            async with workspace.held():
                begun = trio.Event()
                nursery.start_soon(make, "running", agent, begun)
                await begun.wait()
                assert workspace.lost is None
                await worker.end(signal.SIGKILL)
                await workspace.peer.wait_state("reconnecting")
                nursery.start_soon(make, "queued", agent, trio.Event())
                await trio.sleep_forever()

        with pytest.raises(rlm_harness.WorkspaceLost) as caught:
            await until_lost()
        assert [(call.method, call.fate) for call in caught.value.calls] == [
            ("tools.bash", "executed"),
            ("tools.bash", "not_sent"),
        ]
        assert caught.value.fate == "executed"
        assert workspace.lost is not None
        assert workspace.lost.reason == caught.value.reason
    assert fates == {"running": "executed", "queued": "not_sent"}
    assert workspace.receipt is not None
    assert (workspace.receipt.confirmed, workspace.receipt.retryable) == (False, True)


async def test_a_workspace_that_is_closed_in_order_is_not_lost(worker: Worker) -> None:
    async with Workspace.connect(worker.url) as workspace, workspace.held():
        pass
    assert workspace.lost is None


async def test_what_a_block_has_done_stands_although_the_workspace_is_lost_meanwhile(worker: Worker) -> None:
    async with Workspace.connect(worker.url, limits=SOON) as workspace:
        async with workspace.held():
            await worker.end(signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await workspace.peer.wait_closed()
        assert workspace.lost is not None
