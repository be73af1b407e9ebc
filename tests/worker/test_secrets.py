"""What a cell or a command can find out of the worker that runs it: not its token, by no way that can be closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlm_wire
from rlm_wire.errors import AuthenticationError
from rlm_wire.methods.kernels import Execute
from rlm_wire.methods.sessions import OpenAgent, OpenWorkspace, WorkspaceInfo
from rlm_wire.methods.tools import Bash

TOKEN = "the-token-nobody-may-find"

WITHOUT_PRIVILEGE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 19, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_PTRACE: root then is a user like another
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

TRY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(function, *arguments):
    try: function(*arguments)
    except PermissionError: return True
    return False
def links(pid):
    for name in os.listdir(f"/proc/{pid}/fd"): os.readlink(f"/proc/{pid}/fd/{name}")
def environment(pid): return open(f"/proc/{pid}/environ", "rb").read()
def closed(pid):
    pidfd = os.pidfd_open(pid)
    taken = [libc.syscall(438, pidfd, n, 0) for n in range(16)]
    os.close(pidfd)
    return [
        refused(open, f"/proc/{pid}/mem", "rb"),
        refused(links, pid),
        max(taken) == -1,
        libc.ptrace(16, pid, 0, 0) == -1,
        refused(environment, pid) or b"sk-fake" not in environment(pid),
    ]
"""


class Worker:
    """A worker at a TCP port, that got its token by the environment and says much on stderr."""

    def __init__(self, errors: Path) -> None:
        self.errors = errors
        command = [sys.executable, "-c", WITHOUT_PRIVILEGE, "-m", "rlm_worker", "serve"]
        with errors.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--tcp", "127.0.0.1:0", "--verbose"],
                env=os.environ | {"RLM_TOKEN": TOKEN, "FAKE_API_KEY": "sk-fake"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().decode().removeprefix("listening on ").strip()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("worker") / "errors")
    yield worker
    worker.stop()


def places_that_hold(text: str) -> list[str]:
    """Environments and command lines of processes that show `text`, our own aside."""
    found = []
    for path in (path for name in ("environ", "cmdline") for path in Path("/proc").glob(f"[0-9]*/{name}")):
        try:
            if path.parent.name != str(os.getpid()) and text.encode() in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found


async def opened(peer: rlm_wire.Peer) -> tuple[str, WorkspaceInfo]:
    info = await peer.call(OpenWorkspace())
    return (await peer.call(OpenAgent())).agent, info


async def test_b65_a_token_is_in_no_environment_command_line_log_or_error(worker: Worker) -> None:
    with pytest.raises(AuthenticationError) as caught:
        async with rlm_wire.connect(worker.url, token="a-wrong-token"):
            pass
    assert "token-nobody" not in str(caught.value)
    assert "a-wrong-token" not in str(caught.value)
    async with rlm_wire.connect(worker.url, token=TOKEN) as peer:
        agent, _ = await opened(peer)
        cell = await peer.call(Execute(agent, "import os; dict(os.environ)"))
        command = await peer.call(Bash(agent, "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'"))
        assert places_that_hold(TOKEN) == []
        for shown in (cell.result or "", command.output.text, repr(peer), repr(peer.info)):
            assert TOKEN not in shown
            assert "sk-fake" not in shown
        assert "HOME=" in command.output.text
    log = worker.errors.read_text()
    assert TOKEN not in log
    assert "a-wrong-token" not in log


async def test_b64_worker_and_kernel_host_are_closed_to_their_cells_and_a_kernel_can_be_debugged(
    worker: Worker,
) -> None:
    async with rlm_wire.connect(worker.url, token=TOKEN) as peer:
        agent, info = await opened(peer)
        cell = await peer.call(Execute(agent, f"{TRY}\nclosed({info.pid}), closed(os.getppid())"))
        assert cell.result == str(([True] * 5, [True] * 5)), cell
        kernel = (await peer.call(Execute(agent, "os.getpid()"))).result
        assert (await peer.call(Bash(agent, f"readlink /proc/{kernel}/fd/1"))).output.text.startswith("pipe:")
        assert worker.process.poll() is None
