"""A clock that is set while work runs changes labels, never how long anything takes."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from rlm_harness import Workspace

HALF_A_DAY = 12 * 3600

SHIFTED_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

/* Wall clock time is off by the seconds that a file holds; every other clock is as it is. */
static long offset(void) {
    static volatile long *seconds;
    if (!seconds)
        seconds = mmap(0, sizeof *seconds, PROT_READ, MAP_SHARED, open(getenv("WALL_CLOCK"), O_RDONLY | O_CLOEXEC), 0);
    return *seconds;
}

int clock_gettime(clockid_t clock, struct timespec *result) {
    int (*original)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = original(clock, result);
    if (clock == CLOCK_REALTIME)
        result->tv_sec += offset();
    return failed;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture
def shifted_worker(tmp_path: Path) -> Iterator[tuple[str, Callable[[int], None]]]:
    """A worker, and how to set its wall clock forward or back by seconds."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a clock with")
    (tmp_path / "clock.c").write_text(SHIFTED_CLOCK)
    library, clock = tmp_path / "clock.so", tmp_path / "clock"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)
    clock.write_bytes(struct.pack("l", 0))

    def shift(seconds: int) -> None:
        with clock.open("r+b") as file:
            file.write(struct.pack("l", seconds))

    command = [sys.executable, "-m", "rlm_worker", "serve", "--unix", str(tmp_path / "socket")]
    env = {**os.environ, "LD_PRELOAD": str(library), "WALL_CLOCK": str(clock)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith(b"listening on unix:")
        yield f"unix:{tmp_path / 'socket'}", shift
        worker.terminate()


async def test_b74_no_wait_ends_early_or_late_when_the_clock_jumps(
    shifted_worker: tuple[str, Callable[[int], None]], tmp_path: Path
) -> None:
    url, shift = shifted_worker
    async with Workspace.connect(url, cwd=str(tmp_path)) as workspace, workspace.agent() as agent:
        job = await agent.jobs.start("read line; echo $line", stdin=True, timeout=3600)
        results = []

        async def command() -> None:
            results.append((await agent.bash("cat fifo", timeout=3600)).timed_out)

        async def wait() -> None:
            results.append((await agent.jobs.result(job.id)).timed_out)

        await agent.bash("rm -f fifo; mkfifo fifo")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(command)
            nursery.start_soon(wait)
            for seconds in (HALF_A_DAY, -HALF_A_DAY):
                shift(seconds)
                await workspace.peer.ping()
                stamped = (await agent.jobs.run("true", yield_after=60)).id
                created = (await agent.jobs.get(stamped)).created_at
                assert abs(created - time.time() - seconds) < 3600  # the clock was set indeed
                assert not results
            await agent.bash("echo now > fifo")
            await agent.jobs.write(job.id, b"now\n")
        assert results == [False, False]
        assert (await agent.jobs.get(job.id)).elapsed_seconds < 3600
