"""One process of every kind in a workspace: what test_lifetimes puts through every end there is.

Run as a program it is the harness of such a workspace, to be killed: `python lifetimes.py DIRECTORY`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

import rlm_wire
from rlm_harness.workspace import AgentTools, Workspace, local_worker_url
from rlm_wire.errors import WireError
from rlm_wire.methods.tools import BashResult
from rlm_worker.processes import process_table

STOP = "until [ /proc/$!/exe -ef /bin/sleep ]; do :; done; kill -STOP $!"

# `{0}` is a program that sleeps and by whose path the processes of its row are known.
RUNNING = {
    "command": "{0}",
    "command &": "{0} & wait",
    "nohup": "nohup {0} >/dev/null 2>&1 & wait",
    "setsid that is waited for": "setsid --wait {0}",
    "double fork": "({0} &) ; {0}",
    "cleared environment": "env -i {0} & env -i setsid --wait {0}",
    "pipeline": "{0} | {0} | {0}",
    "stopped": f"{{0}} & {{0}} & {STOP}; wait",
    "ignores TERM": "trap '' TERM; {0}; {0}",
    "fork loop": "while :; do ({0} &); /bin/sleep 0.05; done",
}
LEFT = {
    "left by &": "{0} &",
    "left by nohup": "nohup {0} >/dev/null 2>&1 &",
    "left by setsid": "setsid {0} &",
    "left by double fork": "(setsid {0} >/dev/null 2>&1 &)",
    "left with cleared environment": "env -i setsid {0} &",
    "left pipeline": "{0} | {0} &",
    "left stopped": f"{{0}} & {STOP}",
    "left ignoring TERM": "(trap '' TERM; exec {0}) &",
}
OF_A_CELL = ["attached to the kernel", "attached in its own session", "attached tree", "daemon of a cell"]
ROWS = [
    *OF_A_CELL,
    *RUNNING,
    *LEFT,
    *["daemon of a running command", "job", "service", "kept service"],
]

_SLEEPER = """#!/bin/bash
echo -n . > "$0.started"
exec -a "$0" /bin/sleep 1000
"""

_CELL = """
import subprocess
attached = subprocess.Popen(["{0}"], stdout=subprocess.DEVNULL)
own_session = subprocess.Popen(["{1}"], stdout=subprocess.DEVNULL, start_new_session=True)
tree = "trap '' TERM; env -i {2} | {2} & (nohup {2} &) ; setsid --wait {2} & {2} & {stop}; wait"
attached_tree = subprocess.Popen(["bash", "-c", tree], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
daemon = subprocess.run("(setsid {3} >/dev/null 2>&1 &)", shell=True)
"""


def is_sleeper(command: str) -> bool:
    return "/row-" in command


class Scene:
    """The rows' programs, and which of their processes are alive."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.turn_over = trio.Event()
        """Cancels the commands that run."""
        self._started: dict[str, int] = {}
        for row in ROWS:
            program = Path(self.program(row))
            if not program.exists():
                program.write_text(_SLEEPER)
                program.chmod(0o755)
                os.mkfifo(f"{program}.started")
            # Open for both, so that neither side waits for the other.
            self._started[row] = os.open(f"{program}.started", os.O_RDWR | os.O_NONBLOCK)

    def program(self, row: str) -> str:
        return str(self._directory / f"row-{ROWS.index(row):02}.")

    def close(self) -> None:
        for descriptor in self._started.values():
            os.close(descriptor)

    async def wait_started(self, row: str, count: int = 1) -> None:
        while count > 0:
            await trio.lowlevel.wait_readable(self._started[row])
            count -= len(os.read(self._started[row], count))

    def alive(self) -> dict[str, list[int]]:
        """Pids by row, of rows that have any."""
        found: dict[str, list[int]] = {}
        for process in process_table.table().values():
            line = process_table.command_line(process.pid) if process.alive else b""
            for row in ROWS:
                if self.program(row).encode() in line.split(b" "):
                    found.setdefault(row, []).append(process.pid)
        return found

    async def start_all(self, tools: AgentTools, nursery: trio.Nursery, timeout: float | None = None) -> None:
        """Start every row; what runs is in `nursery`, ends with `timeout`, and fails if anything of it is left then."""
        for row, script in LEFT.items():
            result = await tools.bash(script.format(self.program(row)))
            assert result.exit_code == 0
            await self.wait_started(row, script.count("{0}"))
        cell = _CELL.format(*map(self.program, OF_A_CELL), stop=STOP)
        assert (await tools.ipython(cell)).status == "ok"
        await tools.jobs.start(self.program("job"))
        await tools.services.start("service", self.program("service"))
        await tools.services.start("kept", self.program("kept service"), keep=True)
        for row in (*OF_A_CELL, "job", "service", "kept service"):
            await self.wait_started(row, 5 if row == "attached tree" else 1)
        for row, script in RUNNING.items():
            nursery.start_soon(self._run, tools, row, script.format(self.program(row)), timeout)
            await self.wait_started(row, script.count("{0}") - (row == "ignores TERM"))
        row = "daemon of a running command"
        script = f"(setsid {self.program(row)} >/dev/null 2>&1 &); /bin/sleep 1000"
        nursery.start_soon(self._run, tools, row, script, timeout)
        await self.wait_started(row)

    async def _run(self, tools: AgentTools, row: str, script: str, timeout: float | None) -> None:
        with suppress(WireError):  # the end of the agent, or of everything
            async with tools.open_bash(script, timeout=timeout) as call, trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel, call)
                with suppress(WireError):
                    self.check_stopped(row, await call.result())
                nursery.cancel_scope.cancel()

    async def _cancel(self, call: rlm_wire.Call[Any, Any, Any]) -> None:
        await self.turn_over.wait()
        call.cancel()

    def check_stopped(self, row: str, result: BashResult) -> None:
        """At the moment of the result: its tree is gone, a daemon lives and is named."""
        assert result.timed_out or result.cancelled
        alive = self.alive().get(row, [])
        if row.startswith("daemon"):
            assert len(alive) == 1, row
            assert any(self.program(row) in notice for notice in result.notices), result.notices
        else:
            assert alive == [], row
            assert result.notices == [], row


async def main(directory: str) -> None:
    scene = Scene(Path(directory))
    async with (
        Workspace.connect(local_worker_url()) as workspace,
        workspace.agent() as tools,
        trio.open_nursery() as nursery,
    ):
        await scene.start_all(tools, nursery)
        print(workspace.info.pid, flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
