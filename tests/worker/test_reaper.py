"""The reaper with real processes: starting, exit codes, descriptors, whole trees, and the worker's own death."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from rlm_wire.errors import CallError
from rlm_worker.processes import DirectoryError, Process, Reaper, open_reaper, output_pipe, process_table

BASH = "/bin/bash"


async def run(reaper: Reaper, script: str, env: dict[str, str]) -> tuple[int, bytes, Process]:
    """Run a small script to its end: (return code, output, process)."""
    with output_pipe() as pipe:
        fds = {1: pipe.write, 2: pipe.write}
        process = await reaper.spawn([BASH, "-c", script], cwd="/", env=env, fds=fds)
        pipe.close_write()
        returncode = await process.wait()
        output = b""
        with suppress(BlockingIOError):  # silent, but held open by what it left running
            output = os.read(pipe.read, 1 << 16)
    process.release()
    return returncode, output, process


async def start(reaper: Reaper, script: str, env: dict[str, str]) -> Process:
    """Start a script that writes a line once it has set everything up, and wait for that line."""
    with output_pipe() as pipe:
        process = await reaper.spawn([BASH, "-c", script], cwd="/", env=env, fds={1: pipe.write})
        await trio.lowlevel.wait_readable(pipe.read)
    return process


async def test_exit_codes_and_signals_are_reported(reaper: Reaper, environment: dict[str, str]) -> None:
    assert (await run(reaper, "exit 0", environment))[0] == 0
    assert (await run(reaper, "exit 37", environment))[0] == 37
    assert (await run(reaper, "kill -9 $$", environment))[0] == -9


async def test_a_process_starts_clean(reaper: Reaper, environment: dict[str, str]) -> None:
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; cat; ps -o sid=,pgid=,pid=,tty= $$"
    _, output, process = await run(reaper, script, environment)
    blocked, ignored, numbers = output.decode().splitlines()
    internal = 0b11 << 31  # 32 and 33 belong to glibc, whose posix_spawn ignores them in every child
    assert int(blocked.split()[1], 16) == int(ignored.split()[1], 16) & ~internal == 0
    assert numbers.split() == [str(process.pid)] * 3 + ["?"]


async def test_b71_children_have_no_descriptor_but_0_1_and_2(reaper: Reaper, environment: dict[str, str]) -> None:
    _, output, _ = await run(reaper, "readlink /proc/self/fd/0; ls /proc/$$/fd; :", environment)
    assert output.split() == [b"/dev/null", b"0", b"1", b"2"]


async def test_descriptors_may_swap_their_numbers(reaper: Reaper, environment: dict[str, str]) -> None:
    with output_pipe() as first, output_pipe() as second:
        fds = {first.write: second.write, second.write: first.write}
        script = f"echo to-second >&{first.write}; echo to-first >&{second.write}"
        process = await reaper.spawn([BASH, "-c", script], cwd="/", env=environment, fds=fds)
        assert await process.wait() == 0
        assert os.read(first.read, 100) == b"to-first\n"
        assert os.read(second.read, 100) == b"to-second\n"


async def test_b71_nothing_stays_open_after_many_commands(reaper: Reaper, environment: dict[str, str]) -> None:
    (parent,) = {(await run(reaper, "echo $PPID", environment))[1]}
    directories = [Path("/proc/self/fd"), Path(f"/proc/{int(parent)}/fd")]
    before = [len(list(directory.iterdir())) for directory in directories]
    for _ in range(60):
        await run(reaper, ":", environment)
        with pytest.raises(CallError):
            await reaper.spawn(["/nothing/here"], cwd="/", env={}, fds={})
    await run(reaper, ":", environment)
    assert [len(list(directory.iterdir())) for directory in directories] == before


async def test_what_cannot_start_says_why(reaper: Reaper, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    with pytest.raises(CallError, match="No such file") as missing:
        await reaper.spawn([str(tmp_path / "missing")], cwd="/", env={}, fds={})
    with pytest.raises(CallError, match="Permission denied") as denied:
        await reaper.spawn([str(plain)], cwd="/", env={}, fds={})
    with pytest.raises(CallError, match="too long") as long:
        await reaper.spawn(["/bin/true", "x" * 200_000], cwd="/", env={}, fds={})
    with pytest.raises(CallError, match="NUL") as nul:
        await reaper.spawn(["/bin/true", "a\0b"], cwd="/", env={}, fds={})
    with pytest.raises(DirectoryError, match="No such file") as directory:
        await reaper.spawn(["/bin/true"], cwd=str(tmp_path / "missing"), env={}, fds={})
    errors = [missing, denied, long, nul, directory]
    codes = [error.value.code for error in errors]
    assert codes == ["not_found", "permission_denied", "resource_exhausted", "invalid_argument", "not_found"]


async def test_arguments_may_have_a_megabyte(reaper: Reaper, environment: dict[str, str]) -> None:
    arguments = ["x" * 100_000] * 10
    with output_pipe() as pipe:
        script = 'a="$*"; echo ${#a}'
        process = await reaper.spawn(
            [BASH, "-c", script, "bash", *arguments], cwd="/", env=environment, fds={1: pipe.write}
        )
        assert await process.wait() == 0
        assert os.read(pipe.read, 100) == b"1000009\n"


async def test_b72_no_zombies_and_no_exit_code_is_lost(
    reaper: Reaper, environment: dict[str, str], wait_for_end: Callable[[int], bool]
) -> None:
    codes = {}

    async def one(number: int) -> None:
        codes[number] = (await run(reaper, f"sh -c 'sleep 0.01 &'; exit {number}", environment))[0]

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(one, number)
    assert codes == {number: number for number in range(100)}
    (parent,) = {int((await run(reaper, "echo $PPID", environment))[1])}
    watched = [row.pid for row in process_table.table().values() if row.parent == parent and row.alive]
    for pid in watched:  # those that still sleep
        await trio.to_thread.run_sync(wait_for_end, pid)
    await run(reaper, ":", environment)
    assert [row.pid for row in process_table.table().values() if row.parent == parent and not row.alive] == []


async def test_b36_many_commands_at_once_from_a_worker_with_busy_threads(
    reaper: Reaper, environment: dict[str, str]
) -> None:
    async def commands() -> None:
        for _ in range(15):
            assert (await run(reaper, "true", environment))[0] == 0

    async def threads() -> None:
        for _ in range(50):
            await trio.to_thread.run_sync(lambda: [str(n) for n in range(2000)])

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(commands)
            nursery.start_soon(threads)


TREES = {
    "a pipeline": "sleep 1000 | sleep 1000",
    "a background job": "sleep 1000 & wait",
    "nohup": "nohup sleep 1000 >/dev/null 2>&1 & wait",
    "a session of its own that is waited for": "setsid --wait sleep 1000",
    "a subshell whose parent has ended": "(sleep 1000 & ); echo; sleep 1000",
    "no environment": "env -i sleep 1000 & env -i setsid --wait sleep 1000",
    "one that ignores SIGTERM": "trap '' TERM; sleep 1000; sleep 1000",
    "a stopped process": "sleep 1000 & kill -STOP $!; wait",
    "a process that starts others all the time": "while :; do (sleep 1000 & sleep 1000) & sleep 0.01; done",
}


@pytest.mark.parametrize("script", TREES.values(), ids=TREES.keys())
async def test_b04_a_tree_is_gone_when_kill_tree_returns(
    reaper: Reaper, environment: dict[str, str], script: str
) -> None:
    process = await start(reaper, script if "echo" in script else f"echo; {script}", environment)
    before = descendants(process.pid)
    left = await process.kill_tree(grace=0.2)
    process.release()
    assert left == []
    assert [pid for pid in before if alive(pid)] == []
    assert descendants(int((await run(reaper, "echo $PPID", environment))[1])) == []


async def test_nobody_finds_a_dead_process_of_a_tree_that_is_gone(reaper: Reaper, environment: dict[str, str]) -> None:
    script = "for i in {1..4}; do sleep 1000 & done; echo; wait"
    for grace in (0, 5) * 20:
        process = await start(reaper, script, environment)
        pids = descendants(process.pid)
        await process.kill_tree(grace=grace)
        process.release()
        assert [pid for pid in pids if process_table.row(pid) is not None] == []


@pytest.mark.parametrize("reaper", ["subreaper"], indirect=True)
async def test_of_many_trees_that_end_at_once_each_is_said_to_be_gone(
    reaper: Reaper, environment: dict[str, str]
) -> None:
    """Also of those that end while others are looked at: the grace that they have left is not waited for."""
    sleep = [shutil.which("sleep", path=environment["PATH"]) or "", "1000"]
    for _ in range(3):
        processes = [await reaper.spawn(sleep, cwd="/", env=environment, fds={}) for _ in range(100)]
        with trio.move_on_after(30) as patience:
            async with trio.open_nursery() as nursery:
                for process in processes:
                    nursery.start_soon(partial(process.kill_tree, grace=60))
        assert not patience.cancel_called  # `fail_after` would say nothing: what is not cancellable returns, if late
        for process in processes:
            process.release()


def descendants(ancestor: int) -> list[int]:
    rows = process_table.table()
    found = [ancestor]
    for pid in found:
        found += [row.pid for row in rows.values() if row.parent == pid and row.alive]
    return found[1:]


def alive(pid: int) -> bool:
    row = process_table.row(pid)
    return row is not None and row.alive


async def test_sigterm_comes_first_so_that_a_command_can_clean_up(
    reaper: Reaper, environment: dict[str, str], tmp_path: Path
) -> None:
    mark = tmp_path / "cleaned"
    process = await start(reaper, f"trap 'echo > {mark}; exit 5' TERM; echo; sleep 1000 & wait", environment)
    await process.kill_tree()
    assert await process.wait() == 5
    assert mark.exists()


async def test_a_daemon_survives_and_is_named(
    reaper: Reaper, environment: dict[str, str], end: Callable[[int], None]
) -> None:
    script = "pid=$(setsid sleep 1234 >/dev/null & echo $!); until grep -q sleep /proc/$pid/comm; do :; done; echo"
    process = await start(reaper, f"{script}; sleep 1000", environment)
    (daemon,) = await process.kill_tree()
    end(daemon.pid)
    assert alive(daemon.pid)
    assert daemon.command == "sleep 1234"
    assert f"pid {daemon.pid}" in str(daemon)


async def test_what_a_command_leaves_is_known_when_it_has_ended(
    reaper: Reaper, environment: dict[str, str], end: Callable[[int], None]
) -> None:
    _, _, process = await run(reaper, "sleep 1001 >/dev/null & (setsid sleep 1002 >/dev/null &)", environment)
    for survivor in process.left:
        end(survivor.pid)
    assert len(process.left) == 2
    _, _, other = await run(reaper, ":", environment)
    assert other.left == []


async def test_cancelled_starts_leave_nothing(reaper: Reaper, environment: dict[str, str]) -> None:
    async def start_and_stop(patience: float) -> None:
        with trio.move_on_after(patience):
            process = await reaper.spawn([BASH, "-c", "sleep 1000 | sleep 1000"], cwd="/", env=environment, fds={})
            try:
                await process.wait()
            finally:
                await process.kill_tree(grace=0)
                process.release()

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(start_and_stop, number / 2000)
    assert descendants(int((await run(reaper, "echo $PPID", environment))[1])) == []


async def test_signals_reach_the_group_and_no_one_once_it_has_ended(
    reaper: Reaper, environment: dict[str, str]
) -> None:
    process = await start(reaper, "trap 'exit 9' USR1; echo; sleep 1000 & wait", environment)
    process.signal_group(signal.SIGUSR1)
    assert await process.wait() == 9
    process.signal_group(signal.SIGKILL)
    await process.kill_tree()


async def test_a_command_that_signals_its_parent_does_no_harm(reaper: Reaper, environment: dict[str, str]) -> None:
    await run(reaper, "kill -TERM $PPID; kill -INT $PPID; kill -HUP $PPID", environment)
    assert (await run(reaper, "exit 4", environment))[0] == 4


async def test_a_killed_reaper_is_an_error_and_no_hang(reaper: Reaper, environment: dict[str, str]) -> None:
    with pytest.raises(CallError, match="was killed") as waiting:
        await run(reaper, "kill -KILL $PPID; sleep 1", environment)
    with pytest.raises(CallError, match="start a new worker") as starting:
        await run(reaper, "exit 0", environment)
    assert waiting.value.code == starting.value.code == "unavailable"


async def test_a_thousand_commands_started_at_once_all_end(reaper: Reaper, environment: dict[str, str]) -> None:
    """More requests than the socket to the reaper holds."""
    returncodes: list[int] = []

    async def one() -> None:
        returncodes.append((await run(reaper, "exit 3", environment))[0])

    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(one)
    assert returncodes == [3] * 1000


async def test_a_stopped_reaper_does_not_keep_the_worker_from_ending(environment: dict[str, str]) -> None:
    async with open_reaper() as reaper, trio.open_nursery() as nursery:
        nursery.start_soon(run, reaper, "kill -STOP $PPID; sleep 1000", environment)
        await wait_stopped()
        nursery.cancel_scope.cancel()


async def wait_stopped() -> None:
    """Until a child of this process is stopped."""
    while not any(row.parent == os.getpid() and row.state == b"T" for row in process_table.table().values()):
        await trio.lowlevel.checkpoint()


WORKER = """
import os, signal, sys, trio
from rlm_worker.processes import open_reaper, output_pipe
async def main():
    async with open_reaper() as reaper:
        with output_pipe() as pipe:
            env = {"PATH": os.environ["PATH"]}
            async def start(script):
                argv = ["/bin/bash", "-c", script]
                return await reaper.spawn(argv, cwd="/", env=env, fds={1: pipe.write}, output=pipe.read)
            attached = await start("trap '' TERM; sleep 1000 | sleep 1000")
            job = await start(sys.argv[1])
            await job.wait()
            job.release()
            print(attached.pid, *[s.pid for s in job.left], flush=True)
            await trio.sleep_forever()
trio.run(main)
"""


def test_when_the_worker_is_killed_its_commands_end_and_background_jobs_go_on_writing(
    tmp_path: Path, wait_for_end: Callable[[int], bool], end: Callable[[int], None]
) -> None:
    go, done = tmp_path / "go", tmp_path / "done"
    os.mkfifo(go)
    job = f"(read < {go}; head -c 1000000 /dev/zero && echo ok > {done}) &"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, job], stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdout is not None
        attached, left = map(int, worker.stdout.readline().split())
        end(left)
        worker.kill()
    assert wait_for_end(attached)
    assert alive(left)
    go.write_text("\n")
    assert wait_for_end(left)
    assert done.read_text() == "ok\n"
