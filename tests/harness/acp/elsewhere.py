"""Workers in a root of their own: how they are reached, and what their tools can find out there. No tests here."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio

TOKEN = "the-token-of-a-worker-elsewhere"

_APART = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c"]
"""In a root of its own: no process and no network of ours; what is mounted over is out of sight."""

_WORKER = [sys.executable, "-m", "rlm_worker"]
_CLONE_NEWNET = 0x40000000

can_be_apart = subprocess.run([*_APART, "ip link set lo up"], check=False, capture_output=True).returncode == 0


def _apart(hidden: Path | str, *serve: str) -> list[str]:
    """The command of a worker apart, to which what is below `hidden` is out of sight; else of one beside us."""
    command = [*_WORKER, "serve", *serve]
    prepare = f"mount -t tmpfs none {hidden} && ip link set lo up"
    return [*_APART, f"{prepare} && exec {shlex.join(command)}"] if can_be_apart else command


@asynccontextmanager
async def _listening(hidden: Path | str, *where: str) -> AsyncIterator[tuple[int, str]]:
    """A worker apart that outlives its sessions: its process and its URL, as it is within."""
    # The lease is short since whoever was killed has left commands behind, which a test may wait for.
    command = _apart(hidden, *where, "--lease", "5")
    environment = os.environ | {"RLM_TOKEN": TOKEN}
    started = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, env=environment)
    end = signal.SIGKILL
    try:
        assert started.stdout is not None
        url = (await started.stdout.receive_some()).decode().removeprefix("listening on ").strip()
        [worker] = _started_by(started)
        end = signal.SIGTERM  # it listens to that now
        yield worker, url
    finally:
        for process in _started_by(started):
            os.kill(process, end)
        with trio.CancelScope(shield=True):
            await started.wait()


def _started_by(process: trio.Process) -> list[int]:
    """The worker, as unshare waits for it and lets no SIGTERM through."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(child) for child in children.read_text().split()] if can_be_apart else [process.pid]


@asynccontextmanager
async def over_command(hidden: Path | str) -> AsyncIterator[dict[str, Any]]:
    """What a contract says of a worker apart that the harness starts: with it, all ends that was started in there."""
    await trio.lowlevel.checkpoint()
    yield {"execution_command": _apart(hidden, "--stdio")}


@asynccontextmanager
async def over_attach(hidden: Path | str) -> AsyncIterator[dict[str, Any]]:
    """What a contract says of a worker apart that a command leads to, as it does into a container."""
    with tempfile.TemporaryDirectory() as directory:
        async with _listening(hidden, "--unix", f"{directory}/socket"):
            yield {"execution_command": [*_WORKER, "attach", "--unix", f"{directory}/socket"]}


@asynccontextmanager
async def over_tcp(hidden: Path | str) -> AsyncIterator[dict[str, Any]]:
    """What a contract says of a worker apart that listens. Nothing but its port can be reached in its network."""
    async with _listening(hidden, "--tcp", "127.0.0.1:0") as (worker, url), trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        lead_in = partial(_lead_in, worker, int(url.rpartition(":")[2]))
        nursery.start_soon(trio.serve_listeners, lead_in, listeners)
        outside = listeners[0].socket.getsockname()[1]
        yield {"execution_tcp": {"host": "127.0.0.1", "port": outside, "token": TOKEN}}
        nursery.cancel_scope.cancel()


async def _lead_in(worker: int, port: int, outer: trio.SocketStream) -> None:
    within = trio.socket.from_stdlib_socket(_socket_beside(worker))
    await within.connect(("127.0.0.1", port))
    async with outer, trio.SocketStream(within) as inner, trio.open_nursery() as nursery:

        async def carry(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError):
                async for data in source:
                    await sink.send_all(data)
            nursery.cancel_scope.cancel()

        nursery.start_soon(carry, outer, inner)
        nursery.start_soon(carry, inner, outer)


def _socket_beside(process: int) -> socket.socket:
    """A socket in the network of that process: it belongs to where the thread is that makes it."""

    def enter() -> None:
        with open(f"/proc/{process}/ns/net") as network:
            assert ctypes.CDLL(None).setns(network.fileno(), _CLONE_NEWNET) == 0

    with ThreadPoolExecutor(1, initializer=enter) as thread:
        return thread.submit(socket.socket).result()


def looks(hidden: Path | str, url: str) -> list[tuple[str, dict[str, str]]]:
    """Calls of a tool each that print what a command, a cell and a job can find out, as JSON.

    `files` below `hidden`, how many `processes`, what came of asking `url`, and all environments and command lines.
    """
    code = f"""\
import glob, json, os, urllib.request
shown = {{name + "=" + value for name, value in os.environ.items()}}
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        shown.update(open(path, errors="replace").read().split("\\0"))
    except OSError:
        pass  # it has ended, or is closed to us
try:
    asked = str(urllib.request.urlopen({url!r}, timeout=5).status)
except OSError as error:
    asked = type(error).__name__
files = glob.glob({str(hidden)!r} + "/**", recursive=True, include_hidden=True)[1:]
processes = len(glob.glob("/proc/[0-9]*"))
print(json.dumps({{"files": files, "processes": processes, "asked": asked, "shown": sorted(shown)}}))
"""
    command = f"{sys.executable} - <<'END'\n{code}END"
    job = f"print(rlm.shell.run({command!r}, yield_after=60).text)"
    return [("bash", {"command": command}), ("ipython", {"code": code}), ("ipython", {"code": job})]
