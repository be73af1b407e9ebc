"""Hosts in trouble: stopped, without descriptors, of another version. Kernels live on, and there are new ones again."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import trio
from trio.testing import MockClock

import rlm_worker
from rlm_worker.kernel import open_kernel_host, open_kernels
from rlm_worker.processes import open_reaper

ENVIRONMENT = {"PATH": os.environ["PATH"]}

NEEDED = 7
"""Descriptors free in the worker that are enough for another kernel."""


async def test_a_host_that_was_stopped_holds_up_no_end_of_a_kernel_and_is_replaced(mock_clock: MockClock) -> None:
    async with (
        open_reaper() as reaper,
        open_kernel_host(reaper, env=ENVIRONMENT) as host,
        open_kernels(host, reaper, cwd="/", env=ENVIRONMENT) as kernels,
    ):
        stopped = int((await kernels.execute("a", "import os; os.getppid()")).result or 0)
        pidfd = os.pidfd_open(stopped)
        os.kill(stopped, signal.SIGSTOP)
        mock_clock.rate = 20
        result = await kernels.execute("a", "os._exit(3)")
        assert result.status == "kernel_died"
        assert "how is not known" in result.notices[0]

        async def fresh(agent: str) -> None:
            assert (await kernels.execute(agent, "1 + 1")).result == "2"

        async with trio.open_nursery() as nursery:
            for agent in ("a", "b"):  # one gets the spare kernel
                nursery.start_soon(fresh, agent)
            await trio.lowlevel.wait_readable(pidfd)
            mock_clock.rate = 1
        os.close(pidfd)


def test_a_worker_without_descriptors_refuses_a_cell_and_goes_on(workshop) -> None:
    async def execute(agent: str) -> str:
        result = await workshop.kernels.execute(agent, "1 + 1")
        return result.result or result.notices[0]

    workshop.run(execute, "descriptors")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    taken = []
    answers = []
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        for _ in range(NEEDED):
            answers += [workshop.run(execute, f"descriptors {len(answers)}")]
            os.close(taken.pop())
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    refusals = [answer for answer in answers if answer != "2"]
    assert len(refusals) >= 4
    assert all("cannot open more descriptors" in refusal for refusal in refusals), refusals
    assert workshop.run(execute, "descriptors") == "2"


SHOW_ORIGIN = """
import trio
from rlm_worker.kernel import open_kernel_host, open_kernels
from rlm_worker.processes import open_reaper

async def main():
    async with open_reaper() as reaper, open_kernel_host(reaper, env={}) as host:
        async with open_kernels(host, reaper, cwd="/", env={}) as kernels:
            print((await kernels.execute("a", "import rlm_worker; print(rlm_worker.__path__[0])")).output.text)

trio.run(main)
"""


def test_kernels_are_of_the_workers_own_version_also_where_another_is_installed(tmp_path: Path) -> None:
    installed = Path(rlm_worker.__path__[0]).parent
    for package in ("rlm_worker", "rlm_wire"):
        (tmp_path / package).symlink_to(installed / package)
    run = subprocess.run([sys.executable, "-c", SHOW_ORIGIN], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(tmp_path / "rlm_worker")
