"""Peers that are gone, or as good as gone, and do not say so: found out by both sides, with real processes (B62).

Links that carry nothing any more, processes that are stopped, wrappers that hold on to the pipes of dead children.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
import trio.testing
from chaos.workers import TOKEN, WORKER, Watched, relay_url, relays, running_worker
from contract.proxy import BOTH, Direction, proxied

import rlm_harness
import rlm_wire
from rlm_harness.workspace import AgentTools, Workspace
from rlm_wire.broker.patience import Patience
from rlm_wire.endpoints.client import HANDSHAKE_TIMEOUT
from rlm_wire.errors import SessionLost
from rlm_wire.frames.limits import Limits
from rlm_wire.transports.sockets import LINGER

QUICK = Patience(idle=0.4, first_pause=0.05)
"""Silence is borne for 1.2 s."""

LARGE = "x" * (8 << 20)
"""More than sockets and pipes hold."""

BOUND = 20.0
"""Seconds in which a busy machine does what takes two."""

Activity = Callable[[AgentTools], Awaitable[object]]


async def idle(agent: AgentTools) -> object:
    return await trio.sleep_forever()


async def pending(agent: AgentTools) -> object:
    return await agent.bash("sleep 1000")


async def sending(agent: AgentTools) -> object:
    return await agent.edit("small", "small", LARGE)


ACTIVITIES: list[Activity] = [idle, pending, sending]


async def lose(url: str, activity: Activity, break_off: Callable[[], None], then: Callable[[], None]) -> None:
    """Break the connection off in the midst of `activity`: the harness is told, and the worker ends what it runs."""
    with ExitStack() as stack:
        async with (
            Workspace.connect(url, TOKEN, limits=Limits(lease=1), patience=QUICK) as workspace,
            workspace.agent() as agent,
            trio.open_nursery() as nursery,
        ):

            async def work() -> None:
                with pytest.raises(SessionLost):
                    await activity(agent)

            async def until_lost() -> None:
                async with workspace.held():
                    if activity is pending:
                        nursery.start_soon(work)
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    break_off()
                    if activity is sending:
                        nursery.start_soon(work)
                    await trio.sleep_forever()

            await agent.jobs.start("exec sleep 1000")
            (process,) = (await workspace.processes()).processes
            job = stack.enter_context(Watched(process.pid))
            with pytest.raises(rlm_harness.WorkspaceLost, match="could not be resumed within 1 s"):
                with trio.fail_after(BOUND):
                    await until_lost()
        then()
        with trio.fail_after(BOUND):
            await job.ended()


@pytest.mark.parametrize("directions", [BOTH, ("to server",), ("to client",)], ids=" and ".join)
async def test_b62_a_half_open_link_is_found_out_by_both_sides(
    directions: tuple[Direction, ...], tmp_path: Path
) -> None:
    async with (
        running_worker(tmp_path, "--tcp", "127.0.0.1:0", "--lease", "1", "--silence", "1") as worker,
        trio.open_nursery() as nursery,
    ):

        async def one(activity: Activity) -> None:
            directory = tmp_path / activity.__name__
            directory.mkdir()
            async with proxied(worker.url, directory) as proxy:
                await lose(proxy.url, activity, lambda: proxy.silence(*directions), lambda: None)

        for activity in ACTIVITIES:
            nursery.start_soon(one, activity)


@pytest.mark.parametrize("scheme", ["tcp", "tls", "unix"])
async def test_b62_a_proxy_that_accepts_and_says_nothing_is_given_up(
    scheme: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX if scheme == "unix" else socket.AF_INET) as silent:
        silent.bind(path if scheme == "unix" else ("127.0.0.1", 0))
        silent.listen()
        url = f"unix:{path}" if scheme == "unix" else f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        with trio.fail_after(HANDSHAKE_TIMEOUT + LINGER + 1):
            with pytest.raises(rlm_wire.HandshakeError, match="no handshake within 5 s, nothing was received"):
                async with rlm_wire.connect(url, token=TOKEN):
                    pass


async def test_b62_a_worker_that_was_stopped_for_too_long_is_lost_and_cleans_up_when_it_goes_on(tmp_path: Path) -> None:
    async def one(activity: Activity) -> None:
        directory = tmp_path / activity.__name__
        directory.mkdir()
        async with running_worker(directory, "--unix", str(directory / "socket"), "--lease", "1") as worker:
            await lose(worker.url, activity, worker.stop, worker.go_on)

    async with trio.open_nursery() as nursery:
        for activity in ACTIVITIES:
            nursery.start_soon(one, activity)


async def work_through(workspace: Workspace, directory: Path, pause: Callable[[], Awaitable[None]]) -> None:
    """A command, a cell and a large send go on as if there had been no `pause`."""
    results: list[object] = []
    (directory / "small").write_text("small")
    async with workspace.agent() as agent, trio.open_nursery() as nursery:

        async def command() -> None:
            result = await agent.bash("echo ran >> ran; until [ -e go ]; do sleep 0.01; done; echo over")
            results.append(result.output.text)

        async def cell() -> None:
            results.append((await agent.ipython("open('cells', 'a').write('ran\\n')")).result)

        async def send() -> None:
            results.append((await agent.edit("small", "small", LARGE)).replacements)

        nursery.start_soon(command)
        while not (directory / "ran").exists():
            await trio.lowlevel.checkpoint()
        nursery.start_soon(cell)
        async with trio.open_nursery() as pausing:
            pausing.start_soon(pause)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(send)
        (directory / "go").touch()
    assert sorted(map(str, results)) == ["1", "4", "over\n"]
    assert (directory / "small").read_text() == LARGE
    assert (directory / "ran").read_text() == (directory / "cells").read_text() == "ran\n"


async def test_b62_a_worker_that_is_stopped_for_less_than_the_bound_is_not_missed(tmp_path: Path) -> None:
    async with (
        running_worker(tmp_path, "--unix", str(tmp_path / "socket")) as worker,
        Workspace.connect(worker.url) as workspace,
    ):

        async def pause() -> None:
            worker.stop()
            await trio.sleep(0.5)
            worker.go_on()

        await work_through(workspace, tmp_path, pause)
        assert workspace.peer.interruption == ""


async def test_b62_a_worker_that_is_stopped_for_less_than_the_lease_is_found_again(tmp_path: Path) -> None:
    async with (
        running_worker(tmp_path, "--unix", str(tmp_path / "socket")) as worker,
        Workspace.connect(worker.url, patience=QUICK) as workspace,
    ):

        async def pause() -> None:
            worker.stop()
            await workspace.peer.wait_state("reconnecting")
            worker.go_on()

        await work_through(workspace, tmp_path, pause)
        assert "nothing was heard from the peer" in workspace.peer.interruption


@pytest.mark.parametrize("patience", [Patience(), QUICK], ids=["waited for", "replaced"])
async def test_b62_a_relay_that_is_stopped(patience: Patience, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with (
        running_worker(tmp_path, "--unix", str(path)),
        Workspace.connect(relay_url(path), patience=patience) as workspace,
    ):
        (relay,) = relays(path)

        async def pause() -> None:
            os.kill(relay, signal.SIGSTOP)
            if patience is QUICK:
                await workspace.peer.wait_state("reconnecting")
                await workspace.peer.wait_state("connected")
            else:
                await trio.sleep(0.5)
                os.kill(relay, signal.SIGCONT)

        await work_through(workspace, tmp_path, pause)
        assert (relays(path) == [relay]) is (patience is not QUICK)


HOLD = shlex.join(
    ["exec", sys.executable, "-c", "import os, select\nwhile select.select([3], [], [])[0] and os.read(3, 65536): pass"]
)
"""Until stdin ends, which is descriptor 3, the pipes stay open, and what comes is not for anybody."""


async def test_b62_a_wrapper_that_outlives_its_worker_and_keeps_the_pipes_does_not_hide_it(
    tmp_path: Path,
) -> None:
    serve = shlex.join([*WORKER, "serve", "--stdio"])
    wrapper = f"exec 3<&0; {serve} <&3 & echo $! > {tmp_path}/worker; wait; {HOLD}"
    async with (
        Workspace.connect(f"stdio:{shlex.join(['sh', '-c', wrapper])}", patience=Patience(idle=1)) as workspace,
        workspace.agent() as agent,
    ):
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)
        with pytest.raises(SessionLost, match=r"nothing was heard from the peer for 3 s .the command is still running"):
            await agent.bash("true")


async def test_b62_a_wrapper_that_outlives_its_relay_and_keeps_the_pipes_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    attach = shlex.join([*WORKER, "attach", "--unix", str(path)])
    wrapper = f"exec 3<&0; {attach} <&3 & wait; {HOLD}"
    url = f"relay:{shlex.join(['sh', '-c', wrapper])}"
    async with running_worker(tmp_path, "--unix", str(path)), Workspace.connect(url, patience=QUICK) as workspace:

        async def pause() -> None:
            (relay,) = [pid for pid in relays(path) if Path(f"/proc/{pid}/comm").read_text() != "sh\n"]
            os.kill(relay, signal.SIGKILL)
            await workspace.peer.wait_state("reconnecting")
            await workspace.peer.wait_state("connected")

        await work_through(workspace, tmp_path, pause)


KEEPS_PIPES_OF_A_DEAD_PARENT = """
import subprocess, sys, threading
pipe = subprocess.PIPE
with subprocess.Popen(sys.argv[1:], stdin=pipe, stdout=pipe, bufsize=0) as worker:
    def copy(source, target):
        try:
            while data := source.read(65536): target.write(data)
        except OSError: pass
    for ends in (open(0, "rb", 0), worker.stdin), (worker.stdout, open(1, "wb", 0)):
        threading.Thread(target=copy, args=ends, daemon=True).start()
    worker.wait()
"""

HARNESS = """
import sys, trio
from rlm_harness.workspace import Workspace
async def main():
    async with Workspace.connect(sys.argv[1]) as workspace, workspace.agent() as agent:
        await agent.jobs.start("sleep 1000")
        print(workspace.info.pid, (await workspace.processes()).processes[0].pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


async def test_b62_a_worker_ends_whose_wrapper_outlives_the_harness_and_keeps_the_pipes() -> None:
    worker = [*WORKER, "serve", "--stdio", "--silence", "3"]
    url = f"stdio:{shlex.join([sys.executable, '-c', KEEPS_PIPES_OF_A_DEAD_PARENT, *worker])}"
    harness = subprocess.Popen([sys.executable, "-c", HARNESS, url], stdout=subprocess.PIPE)
    assert harness.stdout is not None
    pids = await trio.to_thread.run_sync(harness.stdout.readline)
    with Watched(int(pids.split()[0])) as worker_process, Watched(int(pids.split()[1])) as job:
        harness.kill()
        harness.wait()
        harness.stdout.close()
        await job.ended()
        await worker_process.ended()
