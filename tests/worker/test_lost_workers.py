"""A worker that is gone while it was stopping a command: what of the tree still lives ends, what had left runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from rlm_worker.processes import Reaper, open_reaper, output_pipe, wire
from rlm_worker.processes.tiers import TIERS

Running = Callable[[str], list[int]]

ENDED_LEADER = """
pid=$(setsid "$0" 1234 >/dev/null & echo $!)
until grep -q sleeper /proc/$pid/comm; do :; done
(trap '' TERM; exec "$0" 1000) &
until grep -q sleeper /proc/$!/comm; do :; done
echo
wait
"""
"""Leaves a daemon; of SIGTERM its shell ends, and the sleeper that this waits for does not."""

LIVING_LEADER = """
trap : TERM
(trap '' TERM; setsid "$0" 1000 & trap - TERM; until grep -q sleeper /proc/$!/comm; do :; done; echo; wait)
echo
exec "$0" 2000
"""
"""SIGTERM orphans a sleeper, in a session of its own, that ignores it. The command says so, and goes on."""

WORKER = """
import os, sys, trio
from rlm_worker.processes import open_reaper, output_pipe
async def main(tier, *script):
    async with open_reaper(tier) as reaper, trio.open_nursery() as nursery:
        with output_pipe() as pipe:
            argv = ["/bin/bash", "-c", *script]
            process = await reaper.spawn(argv, cwd="/", env={"PATH": os.environ["PATH"]}, fds={1: pipe.write})
            await trio.lowlevel.wait_readable(pipe.read)
            nursery.start_soon(lambda: process.kill_tree(grace=1000))
            await process.wait()
            print("its leader has ended", flush=True)
trio.run(main, *sys.argv[1:])
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> str:
    """A program that sleeps, by a path that nobody else's processes have."""
    path = tmp_path / "sleeper"
    path.symlink_to("/bin/sleep")
    return str(path)


@pytest.fixture
def find(running: Running, sleeper: str, end: Callable[[int], None]) -> Callable[[int], int]:
    """The pid of the one sleeper that sleeps for so long; it ends with the test."""

    def find_one(seconds: int) -> int:
        (pid,) = running(f"{sleeper} {seconds}")
        end(pid)
        return pid

    return find_one


async def stop(reaper: Reaper, script: list[str], environment: dict[str, str], *, leader_ends: bool) -> None:
    """Start a script that writes a line, and send its tree SIGTERM; until it has ended or writes another line."""
    with output_pipe() as pipe:
        process = await reaper.spawn(["/bin/bash", "-c", *script], cwd="/", env=environment, fds={1: pipe.write})
        await trio.lowlevel.wait_readable(pipe.read)
        os.read(pipe.read, 100)
        reaper.post(wire.STOP, process.key, wire.NUMBER.pack(signal.SIGTERM))
        if leader_ends:
            await process.wait()
        else:
            await trio.lowlevel.wait_readable(pipe.read)


@pytest.mark.parametrize("tier", TIERS)
def test_what_ignores_sigterm_ends_with_a_worker_that_is_killed(
    tier: str, sleeper: str, find: Callable[[int], int], running: Running, wait_for_end: Callable[[int], bool]
) -> None:
    command = [sys.executable, "-c", WORKER, tier, ENDED_LEADER, sleeper]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline()
            member, daemon = find(1000), find(1234)
        finally:
            worker.kill()
    assert wait_for_end(member)
    assert running(f"{sleeper} 1234") == [daemon]


@pytest.mark.parametrize("tier", TIERS)
async def test_what_ignores_sigterm_is_gone_when_the_reaper_is_closed(
    tier: str, sleeper: str, find: Callable[[int], int], running: Running, environment: dict[str, str]
) -> None:
    with trio.fail_after(30):
        async with open_reaper(tier) as reaper:
            await stop(reaper, [ENDED_LEADER, sleeper], environment, leader_ends=True)
            find(1000)
            daemon = find(1234)
        assert running(f"{sleeper} 1000") == []
        assert running(f"{sleeper} 1234") == [daemon]


@pytest.mark.parametrize("tier", TIERS)
async def test_what_a_stop_has_orphaned_is_no_daemon_when_the_reaper_is_closed(
    tier: str, sleeper: str, find: Callable[[int], int], running: Running, environment: dict[str, str]
) -> None:
    with trio.fail_after(30):
        async with open_reaper(tier) as reaper:
            await stop(reaper, [LIVING_LEADER, sleeper], environment, leader_ends=False)
            find(1000)
        assert running(sleeper) == []
