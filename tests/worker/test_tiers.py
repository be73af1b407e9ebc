"""Containment on each tier, forced: what ends with a command, what runs on, what is named; with a real reaper."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from rlm_harness.workspace import Workspace
from rlm_wire.errors import CallError
from rlm_worker.environment import workspace_environment
from rlm_worker.processes import Reaper, open_reaper
from rlm_worker.processes.tiers import TIERS
from rlm_worker.tools.bash import run_bash

every_tier = pytest.mark.parametrize("reaper", TIERS, indirect=True)
Running = Callable[[str], list[int]]


@pytest.fixture
def sleeper(tmp_path: Path, running: Running, end: Callable[[int], None]) -> str:
    """A program that sleeps, by a path that nobody else's processes have; what is left of it ends with the test."""
    path = tmp_path / "sleeper"
    path.symlink_to("/bin/sleep")
    return str(path)


@pytest.fixture
def end_all(sleeper: str, running: Running, end: Callable[[int], None]) -> Callable[[], None]:
    def mark() -> None:
        for pid in running(sleeper):
            end(pid)

    return mark


ENVIRONMENT = workspace_environment(os.environ)

TREE = """
trap '' TERM
{0} 1000 &
nohup {0} 1000 >/dev/null 2>&1 &
setsid --wait {0} 1000 &
env -i {0} 1000 | {0} 1000 &
{0} 1000 & kill -STOP $!
(while :; do ({0} 1000 &); {0} 0.01; done) &
(setsid {0} 1234 >/dev/null &)
until grep -q '{0}.1234' /proc/[0-9]*/cmdline; do :; done
{0} 1000
"""


@every_tier
async def test_b04_a_timeout_ends_the_whole_tree_and_names_the_daemon(
    reaper: Reaper, sleeper: str, running: Running, end_all: Callable[[], None]
) -> None:
    result = await run_bash(reaper, TREE.format(sleeper), cwd="/", env=ENVIRONMENT, timeout=0.5)
    end_all()
    (daemon,) = running(sleeper)
    assert result.timed_out
    (notice,) = result.notices
    assert f"{sleeper} 1234" in notice
    assert (Path(f"/proc/{daemon}/cmdline").read_bytes().split(b"\0"))[1] == b"1234"


@every_tier
async def test_what_an_ended_command_has_left_runs_on_and_is_listed_by_kind(
    reaper: Reaper, sleeper: str, running: Running, end_all: Callable[[], None]
) -> None:
    script = (
        f"{sleeper} 1001 >/dev/null & (setsid {sleeper} 1002 >/dev/null &);"
        f" until pgrep -f '^{sleeper} 1001' && pgrep -f '^{sleeper} 1002'; do :; done"
    )
    result = await run_bash(reaper, script, cwd="/", env=ENVIRONMENT)
    end_all()
    assert len(result.notices) == len(running(sleeper)) == 2
    listed = {process.command: process.role for process in await reaper.running()}
    assert listed == {f"{sleeper} 1001": "job", f"{sleeper} 1002": "daemon"}


@pytest.mark.parametrize("reaper", ["cgroup", "pid-namespace", "subreaper"], indirect=True)
async def test_a_daemon_that_cleared_its_environment_is_listed_though_not_always_known(
    reaper: Reaper, sleeper: str, end_all: Callable[[], None]
) -> None:
    script = f"(env -i setsid {sleeper} 1003 >/dev/null &) ; until pgrep -f '^{sleeper} 1003'; do :; done"
    result = await run_bash(reaper, script, cwd="/", env=ENVIRONMENT)
    end_all()
    (process,) = await reaper.running()
    assert (process.role, process.command) == ("daemon", f"{sleeper} 1003")
    known = await reaper.tier() == "cgroup"
    assert bool(process.key) is known
    assert bool(result.notices) is known


@pytest.mark.parametrize("reaper", ["cgroup"], indirect=True)
async def test_a_control_group_is_given_to_the_next_command_unless_something_is_left_in_it(
    reaper: Reaper, sleeper: str, end_all: Callable[[], None]
) -> None:
    async def group(before: str = "") -> str:
        return (await run_bash(reaper, f"{before} cat /proc/self/cgroup", cwd="/", env=ENVIRONMENT)).output.text

    assert len({await group() for _ in range(20)}) < 20  # a slow one may find that the reaper has moved on
    inhabited = await group(f"{sleeper} 1000 >/dev/null & until pgrep -f '^{sleeper} 1000' >/dev/null; do :; done;")
    end_all()
    assert inhabited not in {await group() for _ in range(5)}


@every_tier
async def test_a_thousand_races_of_start_and_cancel_leave_nothing(
    reaper: Reaper, sleeper: str, running: Running
) -> None:
    limit = trio.CapacityLimiter(16)

    async def start_and_cancel(number: int) -> None:
        async with limit:
            with trio.move_on_after(number % 100 / 10_000):
                script = f"{sleeper} 1000 | {sleeper} 1000" if number % 10 == 0 else f"exec {sleeper} 1000"
                await run_bash(reaper, script, cwd="/", env=ENVIRONMENT)

    races = 1000 if await reaper.tier() == "cgroup" else 50
    async with trio.open_nursery() as nursery:
        for number in range(races):
            nursery.start_soon(start_and_cancel, number)
    assert running(sleeper) == []
    assert await reaper.running() == []


def groups() -> list[str]:
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-maxdepth", "6", "-name", "rlm-worker-*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.split()


async def test_control_groups_are_removed_with_the_worker_and_survivors_are_moved_out(
    sleeper: str, running: Running, end_all: Callable[[], None]
) -> None:
    async with open_reaper("cgroup") as reaper:
        script = f"{sleeper} 1000 >/dev/null & until pgrep -f '^{sleeper} 1000' >/dev/null; do :; done"
        await run_bash(reaper, script, cwd="/", env=ENVIRONMENT)
        end_all()
        (survivor,) = running(sleeper)
        (line,) = [line for line in Path(f"/proc/{survivor}/cgroup").read_text().split() if line.startswith("0::")]
        directory = line.split("/")[-2]
        assert directory.startswith("rlm-worker-")
        assert any(path.endswith(directory) for path in groups())
    assert not any(path.endswith(directory) for path in groups())
    assert directory not in Path(f"/proc/{survivor}/cgroup").read_text()
    assert running(sleeper) == [survivor]


async def test_a_killed_reapers_groups_are_removed_by_the_next(
    tmp_path: Path, wait_for_end: Callable[[int], bool]
) -> None:
    script = "cat /proc/self/cgroup > group; echo $$ > pid; kill -KILL $PPID"
    async with open_reaper("cgroup") as reaper:
        with pytest.raises(CallError, match="was killed"):
            await run_bash(reaper, script, cwd=str(tmp_path), env=ENVIRONMENT)
    assert await trio.to_thread.run_sync(wait_for_end, int((tmp_path / "pid").read_text()))
    directory = next(line for line in (tmp_path / "group").read_text().split() if line.startswith("0::")).split("/")[-2]
    assert any(path.endswith(directory) for path in groups())
    async with open_reaper("cgroup") as reaper:
        assert await reaper.tier() == "cgroup"
        assert not any(path.endswith(directory) for path in groups())


@pytest.mark.parametrize("reaper", ["pid-namespace"], indirect=True)
async def test_a_pid_namespace_hides_the_worker_and_protects_its_reaper(reaper: Reaper) -> None:
    result = await run_bash(reaper, "ls /proc | grep -c '^[0-9]'; kill -KILL 1; echo $PPID", cwd="/", env=ENVIRONMENT)
    seen, parent = map(int, result.output.text.split())
    assert seen <= 6
    assert parent == 1
    assert (await run_bash(reaper, "exit 3", cwd="/", env=ENVIRONMENT)).exit_code == 3


async def test_b72_a_worker_that_is_process_1_leaves_no_zombies_and_loses_no_exit_code() -> None:
    url = f"stdio:unshare --pid --fork --kill-child --mount-proc {sys.executable} -m rlm_worker serve --stdio"
    async with Workspace.connect(url) as workspace, workspace.agent() as agent:
        assert workspace.info.pid == 1
        codes = {}

        async def run(number: int) -> None:
            codes[number] = (await agent.bash(f"sh -c 'sleep 0.05 &'; exit {number}")).exit_code

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(run, number)
        assert codes == {number: number for number in range(100)}
        until_none = 'until [ -z "$(ps -e -o stat= | grep Z)" ]; do :; done'
        assert not (await agent.bash(until_none, timeout=20)).timed_out


def test_a_tier_that_cannot_be_had_is_an_error_that_says_why() -> None:
    script = (
        "import trio\n"
        "from rlm_worker.processes import ContainmentError, open_reaper\n"
        "async def main(tier):\n"
        "    async with open_reaper(tier) as reaper:\n"
        "        print(await reaper.tier(), *(await reaper.why_not_better()).items())\n"
        "for tier in ('cgroup', 'pid-namespace', None):\n"
        "    try:\n"
        "        trio.run(main, tier)\n"
        "    except ContainmentError as error:\n"
        "        print(error)\n"
    )
    nobody = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable]  # or, as root, without root's power
    done = subprocess.run([*nobody, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    first, second, best = done.stdout.splitlines()
    assert "'cgroup' is not possible here" in first
    assert "writable" in first
    assert "CAP_SYS_ADMIN" in second
    assert best.startswith("subreaper ")
