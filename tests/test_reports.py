"""Field reports on the wire and on ending that take whole programs to show; others are with what they are about."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

import rlm_harness
import rlm_wire
from rlm_harness import local_worker_url
from rlm_wire.endpoints.server import STRANGERS_LIMIT
from rlm_wire.frames.limits import PREFACE
from rlm_wire.transports.tcp import split_address

Start = Callable[..., tuple[subprocess.Popen[bytes], str]]
TOKEN = "a token for the field reports"
ALL_RUN = "while [ $(wc -l < ran) != 20 ]; do sleep 0.01; done"
IN_C = "import collections, itertools\nprint('begun', flush=True)\ncollections.deque(itertools.repeat(0), maxlen=0)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a worker at a Unix socket and return it with its URL; it is ended with the test."""
    workers: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str, stderr: object = None) -> tuple[subprocess.Popen[bytes], str]:
        command = [sys.executable, "-m", "rlm_worker", "serve", "--unix", str(tmp_path / "worker"), *arguments]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, cwd=tmp_path)  # type: ignore[call-overload]
        workers.append(worker)
        assert worker.stdout is not None
        return worker, worker.stdout.readline().decode().removeprefix("listening on ").strip()

    yield run
    for worker in workers:
        worker.terminate()
        worker.communicate(timeout=30)


async def says_hi(url: str) -> None:
    async with rlm_harness.Workspace.connect(url) as workspace, workspace.agent() as agent:
        assert (await agent.bash("echo hi")).output.text == "hi\n"


async def be_refused(url: str) -> None:
    async with await trio.open_unix_socket(url.removeprefix("unix:")) as stranger:
        await stranger.send_all(b"not the protocol")
        assert await read_all(stranger)


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    received = b""
    with suppress(trio.BrokenResourceError):
        async for chunk in stream:
            received += chunk
    return received


async def test_b09_sigterm_ends_a_worker_whose_cell_is_busy_in_c(start: Start) -> None:
    worker, url = start()
    begun = trio.Event()
    async with rlm_harness.Workspace.connect(url) as workspace, workspace.agent() as agent:
        kernel = os.pidfd_open(int((await agent.ipython("import os; os.getpid()")).result or 0))

        async def run() -> None:
            with pytest.raises(rlm_wire.SessionLost):
                await agent.ipython(IN_C, on_output=lambda _: begun.set())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await begun.wait()
            worker.send_signal(signal.SIGTERM)
    assert await trio.to_thread.run_sync(worker.wait) == 0
    await trio.lowlevel.wait_readable(kernel)  # it has ended
    os.close(kernel)


HARNESS = f"""
import os, trio
from rlm_harness import Workspace, local_worker_url
async def main():
    async with Workspace.connect(local_worker_url()) as workspace, workspace.agent() as agent:
        kernel = (await agent.ipython("import os; os.getpid()")).result
        await agent.ipython({IN_C!r}, on_output=lambda _: print(workspace.info.pid, kernel, flush=True))
trio.run(main)
"""


async def test_b09_a_worker_whose_cell_is_busy_in_c_ends_with_its_harness() -> None:
    with subprocess.Popen([sys.executable, "-c", HARNESS], stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        line = await trio.to_thread.run_sync(harness.stdout.readline)
        ends = [os.pidfd_open(int(pid)) for pid in line.split()]
        harness.kill()
    for end in ends:
        await trio.lowlevel.wait_readable(end)
        os.close(end)


@pytest.mark.parametrize("errors", ["a pipe that nobody reads", "/dev/full"])
async def test_b18_a_worker_that_cannot_write_its_log_goes_on(start: Start, errors: str) -> None:
    stderr = subprocess.PIPE if errors.startswith("a pipe") else os.open(errors, os.O_WRONLY)
    _, url = start("--verbose", stderr=stderr)
    if stderr != subprocess.PIPE:
        os.close(stderr)
    for _ in range(1000):  # a line for each, of more than 100 bytes: a pipe holds 64 KiB
        await be_refused(url)
    await says_hi(url)


async def test_b53_strangers_that_did_tls_or_send_too_much_are_dropped_and_a_good_client_is_served() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async def stranger(url: str) -> trio.SSLStream[trio.SocketStream]:
        address = split_address(url.removeprefix("tls://"), scheme="tls")
        stream = await trio.open_ssl_over_tcp_stream(*address, ssl_context=context, https_compatible=True)
        await stream.do_handshake()
        return stream

    async with rlm_wire.serve("tls://127.0.0.1:0", rlm_wire.Service(), TOKEN) as server:
        silent = [await stranger(server.urls[0]) for _ in range(70)]
        async with rlm_wire.connect(server.urls[0], token=TOKEN) as peer:
            await peer.ping()
        assert len(server._strangers) <= STRANGERS_LIMIT
        assert await read_all(silent[0]) == PREFACE  # and its end: the oldest is dropped
        large = await stranger(server.urls[0])
        await large.send_all(PREFACE + (100_000_000).to_bytes(4, "big"))
        assert b"frame of 100000000 bytes refused" in await read_all(large)
        for stream in [*silent, large]:
            await trio.aclose_forcefully(stream)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cat /dev/urandom", "no preface in 65536 bytes|terminal"),
        ("yes", "no preface in 65536 bytes"),
        ("printf 'HTTP/1.1 400 Bad Request\\r\\n\\r\\n'", "HTTP/1.1 400"),
        ("printf 'Password: '", "Password"),
    ],
)
async def test_b54_a_command_that_is_no_worker_is_an_error_that_shows_what_it_said(command: str, said: str) -> None:
    with pytest.raises(rlm_wire.WireError, match=said):
        async with rlm_wire.connect(f"stdio:{command}"):
            pass


async def test_b54_another_server_is_an_error_that_shows_what_it_said() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, listeners)
        url = f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        with pytest.raises(rlm_wire.HandshakeError, match="speaks HTTP"):
            async with rlm_wire.connect(url, token=TOKEN):
                pass
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["command", "cell"])
async def test_b63_a_worker_that_is_killed_fails_all_its_calls_and_the_next_one_runs_nothing_again(
    tmp_path: Path, how: str
) -> None:
    url = f"{local_worker_url()} --containment subreaper"  # another tier would keep it out of sight
    lost: list[rlm_wire.SessionLost] = []
    async with rlm_harness.Workspace.connect(url, cwd=str(tmp_path)) as workspace, workspace.agent() as agent:
        pid = workspace.info.pid

        async def run(number: int) -> None:
            with pytest.raises(rlm_wire.SessionLost) as caught:
                await agent.bash(f"echo {number} >> ran; sleep 1000", on_output=print)
            lost.append(caught.value)

        async def kill() -> None:
            work = {
                "command": lambda: agent.bash(f"{ALL_RUN}; kill -9 {pid}; sleep 1000"),
                "cell": lambda: agent.ipython(f"!{ALL_RUN}\nimport os\nos.kill({pid}, 9)"),
            }
            with pytest.raises(rlm_wire.SessionLost):
                await work[how]()

        (tmp_path / "ran").touch()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(run, number)
            nursery.start_soon(kill)
    assert len(lost) == 20
    for error in lost:
        assert "killed by signal 9" in str(error)
        assert error.fate == "maybe_executed"
    async with rlm_harness.Workspace.connect(url, cwd=str(tmp_path)) as workspace, workspace.agent() as agent:
        assert (await agent.bash("wc -l < ran")).output.text.strip() == "20"


async def test_b71_connections_leave_no_descriptor_in_a_worker(start: Start) -> None:
    worker, url = start()

    def count() -> int:
        return len(list(Path(f"/proc/{worker.pid}/fd").iterdir()))

    await says_hi(url)
    before = count()
    for _ in range(100):
        async with rlm_wire.connect(url):
            pass
        await be_refused(url)
    with trio.fail_after(30):
        while count() > before + 10:  # the last ones may not be closed yet; a host of kernels has come up meanwhile
            await says_hi(url)
