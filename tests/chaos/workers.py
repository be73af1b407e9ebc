"""Real processes for tests that stop, kill and replace them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import trio

WORKER = [sys.executable, "-m", "rlm_worker"]

TOKEN = "a token for the tests of faults"


class Worker:
    """One `rlm-worker serve` after the other at the same address."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.url = ""
        self._options = options
        self._process: trio.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start one, and return once it listens. An address with port 0 is kept from then on."""
        options = list(self._options)
        if self.url.startswith(("tcp:", "tls:")):
            options[1] = self.url.partition("//")[2]
        self._process = await trio.lowlevel.open_process(
            [*WORKER, "serve", *options],
            cwd=self.directory,
            env=os.environ | {"RLM_TOKEN": TOKEN},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            line += await self._process.stdout.receive_some()
        self.url = line.decode().removeprefix("listening on ").strip()

    async def end(self, number: int = signal.SIGTERM) -> None:
        """End it by that signal, also a stopped one, and wait until it has ended."""
        process, self._process = self._process, None
        if process is not None:
            with trio.CancelScope(shield=True):
                process.send_signal(number)
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                await process.wait()
                assert process.stdout is not None
                await process.stdout.aclose()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@asynccontextmanager
async def running_worker(directory: Path, *options: str) -> AsyncIterator[Worker]:
    """`options` begin with the address: `--unix PATH`, `--tcp HOST:PORT`."""
    worker = Worker(directory, *options)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.end()


class Watched:
    """A process whose end can be waited for, whoever its parent is."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    async def ended(self) -> None:
        await trio.lowlevel.wait_readable(self._descriptor)


def relay_url(socket: Path) -> str:
    """To the worker at `socket`, through `rlm-worker attach`."""
    return "relay:" + shlex.join([*WORKER, "attach", "--unix", str(socket)])


def relays(socket: Path) -> list[int]:
    """Pids of the running `rlm-worker attach` for that socket."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            argv = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"attach" in argv and os.fsencode(socket) in argv:
            found.append(int(process.name))
    return found
