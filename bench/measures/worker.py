"""The worker: how soon it listens, and what a command and a cell cost over the same thing without a worker."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

import trio

from bench.lab import Lab
from bench.report import Row
from rlm_harness.workspace import Workspace, local_worker_url


def measure(lab: Lab) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        yield _start(lab, f"{directory}/socket")
        os.environ["IPYTHONDIR"] = directory
        yield from trio.run(_tools, directory, 20 if lab.quick else 100)


def _start(lab: Lab, socket: str) -> Row:
    worker, imports = [], []
    for _ in range(5 if lab.quick else 15):
        start = perf_counter()
        command = [sys.executable, "-m", "rlm_worker", "serve", "--unix", socket]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            worker.append(perf_counter() - start)
            process.send_signal(signal.SIGTERM)
        start = perf_counter()
        subprocess.run([sys.executable, "-c", "import trio, msgspec"], check=True)
        imports.append(perf_counter() - start)
    return _over("worker listens, over `import trio, msgspec`", "unix", worker, imports, at_most=150)


async def _tools(directory: str, rounds: int) -> list[Row]:
    """A command and a cell through harness and worker, each in turn with the same thing done here and now."""
    async with Workspace.connect(local_worker_url(), cwd=directory) as workspace, workspace.agent() as agent:
        commands = await _in_turn(agent.bash, "true", _spawn_and_wait, rounds)
        cells = await _in_turn(agent.ipython, "1+1", _cell_in_process(), rounds)
    return [
        _over('bash("true"), over spawning and waiting', "stdio", *commands, at_most=1.5),
        _over('warm ipython("1+1"), over the cell in process', "stdio", *cells, at_most=1.5),
    ]


async def _in_turn(
    tool: Callable[[str], Awaitable[object]], text: str, here: Callable[[], object], rounds: int
) -> tuple[list[float], list[float]]:
    ours, raw = [], []
    for _ in range(rounds + 5):
        start = perf_counter()
        await tool(text)
        ours.append(perf_counter() - start)
        start = perf_counter()
        here()
        raw.append(perf_counter() - start)
    return ours[5:], raw[5:]  # the first ones warm up


def _spawn_and_wait() -> None:
    subprocess.run(["bash", "-c", "true"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)


def _cell_in_process() -> Callable[[], object]:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell: Any = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            shell.run_cell("1+1", store_history=True)

    return run


def _over(quantity: str, subject: str, ours: list[float], raw: list[float], at_most: float) -> Row:
    over = median(a - b for a, b in zip(ours, raw, strict=True)) * 1e3
    return Row(
        quantity, f"{subject}; {median(ours) * 1e3:.3g} against {median(raw) * 1e3:.3g} ms", over, "ms", at_most=at_most
    )
