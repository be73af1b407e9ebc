"""A worker reached through a command that leads to it: the command may die, and what it led to goes on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from chaos.workers import WORKER, relay_url, relays

import rlm_wire
from rlm_wire.methods.kernels import Execute
from rlm_wire.methods.sessions import OpenAgent, OpenWorkspace
from rlm_wire.methods.tools import Bash


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "worker.sock"
    worker = subprocess.Popen(
        [*WORKER, "serve", "--unix", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    assert worker.stdout is not None
    assert worker.stdout.readline().startswith(b"listening on ")
    yield path
    worker.terminate()
    worker.communicate(timeout=30)


async def test_work_goes_on_and_runs_once_when_the_command_that_led_to_it_is_killed(
    socket: Path, tmp_path: Path
) -> None:
    async with rlm_wire.connect(relay_url(socket)) as peer:
        await peer.call(OpenWorkspace())
        agent = (await peer.call(OpenAgent())).agent
        await peer.call(Execute(agent, "x = 41", None))
        results: list[str] = []

        async def run() -> None:
            command = "echo ran >> ran; while [ ! -e go ]; do sleep 0.01; done; echo over"
            results.append((await peer.call(Bash(agent, command))).output.text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            for _ in range(2):
                (relay,) = relays(socket)
                os.kill(relay, signal.SIGKILL)
                await peer.wait_state("reconnecting")
                assert "killed by signal 9" in peer.interruption
                await peer.wait_state("connected")
            (tmp_path / "go").touch()
        assert results == ["over\n"]
        assert (tmp_path / "ran").read_text() == "ran\n"
        assert "42" in str(await peer.call(Execute(agent, "x + 1", None)))
    assert relays(socket) == []


async def test_leaving_ends_the_relay_and_the_session_at_once(socket: Path) -> None:
    async with rlm_wire.connect(relay_url(socket)) as peer:
        await peer.call(OpenWorkspace())
    assert relays(socket) == []
    async with rlm_wire.connect(f"unix:{socket}") as other:
        await other.call(OpenWorkspace())


def test_attaching_where_nobody_listens_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*WORKER, "attach", "--unix", str(tmp_path / "nobody")], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rlm-worker: cannot connect to unix:")
    assert done.stderr.count("\n") == 1
