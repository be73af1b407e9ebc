"""The table of lifetimes: processes of every kind, put through every end there is, with a real worker.

Which row survives which end is written down once, in SURVIVORS.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from worker import lifetimes
from worker.lifetimes import LEFT, RUNNING, Scene

from rlm_harness.workspace import Workspace
from rlm_wire.errors import WireError

ATTACHED = {"attached to the kernel", "attached in its own session", "attached tree"}
RUN_ON = {*LEFT, "daemon of a cell", "daemon of a running command", "kept service"}
BESIDE = {"job", "service"}

SURVIVORS = {
    "kernel restart": {*RUNNING, *RUN_ON, *BESIDE},
    "kernel crash": {*RUNNING, *RUN_ON, *BESIDE},
    "timeout": {*ATTACHED, *RUN_ON, *BESIDE},
    "cancelled turn": {*ATTACHED, *RUN_ON, *BESIDE},
    "agent end": RUN_ON,
    "session end": RUN_ON,
    "worker SIGTERM": RUN_ON,
    "worker SIGKILL": RUN_ON,
    "harness gone": RUN_ON,
}

COMMAND_TIME = 5.0
"""Seconds that commands get where they are to time out: enough to start them all on a busy machine."""

_STUBBORN = """
import time
while True:
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        pass
"""

WaitForEnd = Callable[[int], bool]


@pytest.fixture
def scene(tmp_path: Path, end: Callable[[int], None]) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    for pids in scene.alive().values():
        for pid in pids:
            end(pid)
    scene.close()


@asynccontextmanager
async def open_worker(directory: Path, tier: str | None) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    address = directory / "worker.sock"
    command = [sys.executable, "-m", "rlm_worker", "serve", "--unix", str(address)]
    command += ["--containment", tier] if tier else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        await trio.to_thread.run_sync(process.stdout.readline)
        try:
            yield process, f"unix:{address}"
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(process.wait)


def compare(scene: Scene, column: str) -> None:
    assert set(scene.alive()) == SURVIVORS[column]


async def wait_for_the_others(scene: Scene, column: str, wait_for_end: WaitForEnd) -> None:
    """Where nobody can tell us when all is over: until nothing is left of what must end."""
    while ending := [pid for row, pids in scene.alive().items() if row not in SURVIVORS[column] for pid in pids]:
        for pid in ending:
            assert await trio.to_thread.run_sync(wait_for_end, pid)


async def restart_kernel(scene: Scene, url: str) -> None:
    async with Workspace.connect(url) as workspace, trio.open_nursery() as nursery, workspace.agent() as tools:
        await scene.start_all(tools, nursery)
        await tools.ipython(_STUBBORN, timeout=0.2)
        assert (await tools.ipython("1")).status == "ok"
        compare(scene, "kernel restart")


async def crash_kernel(scene: Scene, url: str) -> None:
    async with Workspace.connect(url) as workspace, trio.open_nursery() as nursery, workspace.agent() as tools:
        await scene.start_all(tools, nursery)
        assert (await tools.ipython("import os; os._exit(1)")).status == "kernel_died"
        compare(scene, "kernel crash")


async def time_out(scene: Scene, url: str) -> None:
    async with Workspace.connect(url) as workspace, workspace.agent() as tools:
        async with trio.open_nursery() as nursery:
            await scene.start_all(tools, nursery, COMMAND_TIME)
            assert (await tools.ipython("import time; time.sleep(1000)", timeout=0.2)).status == "timed_out"
        compare(scene, "timeout")


async def cancel_turn(scene: Scene, url: str) -> None:
    async with Workspace.connect(url) as workspace, workspace.agent() as tools:
        async with trio.open_nursery() as nursery:
            await scene.start_all(tools, nursery)
            with trio.move_on_after(0.2):
                await tools.ipython("import time; time.sleep(1000)")
            scene.turn_over.set()
        compare(scene, "cancelled turn")


async def end_agent(scene: Scene, url: str) -> None:
    async with Workspace.connect(url) as workspace, trio.open_nursery() as nursery:
        async with workspace.agent() as tools:
            await scene.start_all(tools, nursery)
        compare(scene, "agent end")


async def end_session(scene: Scene, url: str) -> None:
    async with trio.open_nursery() as nursery, Workspace.connect(url) as workspace:
        leave = trio.Event()
        agent = await nursery.start(stay, workspace, leave)
        await scene.start_all(agent, nursery)
        receipt = await workspace.close()
        compare(scene, "session end")
        leave.set()
    alive = scene.alive()
    assert (receipt.confirmed, receipt.error, receipt.retryable, receipt.remaining) == (True, None, False, [])
    assert workspace.receipt is receipt
    assert {process.kind for process in receipt.declared} == {"service"}
    named = [process for process in receipt.unknown if lifetimes.is_sleeper(process.command)]
    assert len(named) == sum(len(pids) for row, pids in alive.items() if row != "kept service")  # which was declared
    stopped = " ".join(process.command for process in receipt.stopped)
    assert all(scene.program(row) in stopped for row in {*ATTACHED, *BESIDE, *RUNNING} - {"ignores TERM"})


async def stay(workspace: Workspace, leave: trio.Event, task_status: trio.TaskStatus[lifetimes.AgentTools]) -> None:
    with suppress(WireError):  # it is closed with the workspace
        async with workspace.agent() as tools:
            task_status.started(tools)
            await leave.wait()


async def signal_worker(scene: Scene, url: str, process: subprocess.Popen[str], number: signal.Signals) -> None:
    left: list[Workspace] = []
    with suppress(WireError):
        async with trio.open_nursery() as nursery, Workspace.connect(url) as workspace, workspace.agent() as tools:
            left.append(workspace)
            await scene.start_all(tools, nursery)
            process.send_signal(number)
            await trio.to_thread.run_sync(process.wait)
            workspace.abandon()  # or it would try for a while to find the worker again
    receipt = left[0].receipt
    assert receipt is not None
    assert (receipt.confirmed, receipt.retryable) == (False, True)


async def kill_harness(scene: Scene, directory: Path, tier: str | None, wait_for_end: WaitForEnd) -> None:
    """B09: the harness is killed; its worker, and what had to end with it, must be gone by themselves."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])} | ({"RLM_CONTAINMENT": tier} if tier else {})
    command = [sys.executable, lifetimes.__file__, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as harness:
        assert harness.stdout is not None
        worker = int(await trio.to_thread.run_sync(harness.stdout.readline))
        harness.kill()
        assert await trio.to_thread.run_sync(wait_for_end, worker)


async def come_to_an_end(column: str, tier: str | None, scene: Scene, directory: Path, wait: WaitForEnd) -> None:
    inside = {
        "kernel restart": restart_kernel,
        "kernel crash": crash_kernel,
        "timeout": time_out,
        "cancelled turn": cancel_turn,
        "agent end": end_agent,
        "session end": end_session,
    }
    if column == "harness gone":  # a worker of its own
        await kill_harness(scene, directory, tier, wait)
        return
    async with open_worker(directory, tier) as (process, url):
        end: Callable[[Scene, str], Awaitable[None]]
        if column in inside:
            end = inside[column]
        else:
            end = partial(signal_worker, process=process, number=signal.Signals[column.split()[1]])
        await end(scene, url)


@pytest.mark.parametrize(
    ("tier", "column"),
    [
        *[(None, column) for column in SURVIVORS],
        *[
            (tier, column)
            for tier in ("pid-namespace", "subreaper", "process-group")
            for column in ("timeout", "cancelled turn", "worker SIGKILL")
        ],
        ("process-group", "kernel crash"),
    ],
)
async def test_b04_b09_what_runs_on_and_what_does_not(
    column: str, tier: str | None, scene: Scene, tmp_path: Path, wait_for_end: WaitForEnd
) -> None:
    await come_to_an_end(column, tier, scene, tmp_path, wait_for_end)
    if column in ("worker SIGKILL", "harness gone"):
        await wait_for_the_others(scene, column, wait_for_end)
    if column.startswith(("worker", "harness", "session")):
        compare(scene, column)
