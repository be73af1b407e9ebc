"""What runs in a workspace and the receipt of its closing, through a real worker over stdio and TCP."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from rlm_harness.workspace import Workspace
from rlm_wire.errors import CallError
from rlm_wire.methods.processes import ProcessInfo
from rlm_wire.methods.sessions import OpenAgent
from rlm_worker.processes.tiers import TIERS

TOKEN = "correct horse battery staple"


@pytest.fixture
def tcp_url(tmp_path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "rlm_worker", "serve", "--tcp", "127.0.0.1:0"]
    env = {**os.environ, "RLM_TOKEN": TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as worker:
        assert worker.stdout is not None
        yield worker.stdout.readline().removeprefix("listening on ").strip()
        worker.terminate()


def stdio_url(tier: str = "") -> str:
    option = f" --containment {tier}" if tier else ""
    return f"stdio:{shlex.quote(sys.executable)} -m rlm_worker serve --stdio{option}"


@asynccontextmanager
async def running(function: Callable[..., object], *args: object) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(function, *args)  # type: ignore[arg-type]
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("tier", TIERS)
async def test_processes_are_listed_with_owner_kind_and_lifetime(
    tier: str, tmp_path: Path, end: Callable[[int], None]
) -> None:
    os.mkfifo(tmp_path / "up")
    up = os.open(tmp_path / "up", os.O_RDWR | os.O_NONBLOCK)
    async with Workspace.connect(stdio_url(tier), cwd=str(tmp_path)) as workspace, workspace.agent("ada") as ada:
        await ada.ipython("import subprocess; child = subprocess.Popen(['sleep', '1001'])")
        await ada.bash("sleep 1002 >/dev/null & (setsid sleep 1003 >/dev/null &); sleep 0.2")
        await ada.jobs.start("exec sleep 1004")
        async with running(ada.bash, "echo > up; exec sleep 1005"):
            await trio.lowlevel.wait_readable(up)
            listed = await workspace.processes()
    os.close(up)
    assert listed.tier == tier
    by_kind = {process.kind: process for process in listed.processes}
    lifetimes = {kind: process.lifetime for kind, process in by_kind.items()}
    assert lifetimes == {
        "kernel": "agent",
        "cell child": "kernel",
        "background job": "survives",
        "daemon": "survives",
        "job": "agent",
        "command": "call",
    }
    assert {process.agent for process in listed.processes} == {"ada"}
    assert (by_kind["cell child"].command, by_kind["daemon"].command) == ("sleep 1001", "sleep 1003")
    receipt = workspace.receipt
    assert receipt is not None
    assert (receipt.confirmed, receipt.tier, receipt.error) == (True, tier, None)
    assert {process.command for process in receipt.unknown} == {"sleep 1002", "sleep 1003"}
    assert by_kind["kernel"].pid in {process.pid for process in receipt.stopped}
    for process in receipt.unknown:
        end(outer_pid(process))


def outer_pid(process: ProcessInfo) -> int:
    """As this test sees it, of a process that may live in a PID namespace."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
            line = (status.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
        if line == process.command and text.partition("NSpid:")[2].split("\n")[0].split()[-1] == str(process.pid):
            return int(status.parent.name)
    raise AssertionError(f"{process} is not alive")


async def test_a_closed_workspace_keeps_its_receipt_and_opens_no_agents(tcp_url: str) -> None:
    async with Workspace.connect(tcp_url, TOKEN) as workspace:
        async with workspace.agent() as agent:
            await agent.bash("true")
        receipt = await workspace.close()
        assert (receipt.confirmed, receipt.stopped, receipt.unknown) == (True, [], [])
        assert await workspace.close() is receipt
        with pytest.raises(CallError, match="the workspace is closed"):
            await workspace.peer.call(OpenAgent())
    assert workspace.receipt is receipt
    async with Workspace.connect(tcp_url, TOKEN) as other, other.agent() as agent:
        assert (await agent.bash("echo fresh")).output.text == "fresh\n"


async def test_two_sessions_of_one_worker_have_each_their_own_list_and_receipt(
    tcp_url: str, end: Callable[[int], None]
) -> None:
    async with (
        Workspace.connect(tcp_url, TOKEN) as one,
        Workspace.connect(tcp_url, TOKEN) as two,
        one.agent("one") as agent,
        two.agent("two") as other,
    ):
        until_it_sleeps = "until [ $(cat /proc/$!/comm) = sleep ]; do :; done"
        await agent.bash(f"sleep 1011 >/dev/null & {until_it_sleeps}")
        await other.bash(f"sleep 1012 >/dev/null & {until_it_sleeps}")
        receipt = await one.close()
        (left,) = (await two.processes()).processes
    assert [process.command for process in receipt.unknown] == ["sleep 1011"]
    assert (left.command, left.agent) == ("sleep 1012", "two")
    for process in [*receipt.unknown, left]:
        end(process.pid)


async def test_a_killed_reaper_is_a_final_negative() -> None:
    async with Workspace.connect(stdio_url()) as workspace, workspace.agent() as agent:
        with pytest.raises(CallError, match="was killed"):
            await agent.bash("kill -KILL $PPID")
        receipt = await workspace.close()
    assert (receipt.confirmed, receipt.retryable) == (False, False)
    assert receipt.error is not None
    assert "was killed" in receipt.error


async def test_a_lost_worker_is_missing_evidence() -> None:
    async with Workspace.connect(stdio_url()) as workspace:
        os.kill(workspace.info.pid, signal.SIGKILL)
        await workspace.peer.wait_closed()
    assert workspace.receipt is not None
    assert (workspace.receipt.confirmed, workspace.receipt.retryable) == (False, True)
    assert workspace.receipt.error
