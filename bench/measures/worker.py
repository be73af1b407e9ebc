"""The worker: how soon it listens, and what a command and a cell cost over the same thing without a worker."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import trio

from bench.beside import in_turn, over, spawn_and_wait
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
    return over("worker listens, over `import trio, msgspec`", "unix", worker, imports, at_most=150)


async def _tools(directory: str, rounds: int) -> list[Row]:
    """A command and a cell through harness and worker, each in turn with the same thing done here and now."""
    async with Workspace.connect(local_worker_url(), cwd=directory) as workspace, workspace.agent() as agent:
        commands = await in_turn(agent.bash, "true", spawn_and_wait, rounds)
        cells = await in_turn(agent.ipython, "1+1", _cell_in_process(), rounds)
    return [
        over('bash("true"), over spawning and waiting', "stdio", *commands, at_most=1.5),
        over('warm ipython("1+1"), over the cell in process', "stdio", *cells, at_most=1.5),
    ]


def _cell_in_process() -> Callable[[], object]:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell: Any = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            shell.run_cell("1+1", store_history=True)

    return run
