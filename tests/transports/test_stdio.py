"""What is particular to `stdio:`: the child process, its end, its stderr, and the standard streams of a server."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from transports.streams import receive, receive_all

from rlm_wire.errors import LaunchError, TransportError
from rlm_wire.transports import ByteStream, transport_for
from rlm_wire.transports.children import STDERR_TAIL, ChildStream
from rlm_wire.transports.stdio import StdioTransport

IGNORES_TERM = "trap '' TERM; echo ready; while :; do sleep 1000; done"


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def shell(script: str) -> str:
    return shlex.join(["sh", "-c", script])


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def exit_code(stream: ByteStream) -> int | None:
    assert isinstance(stream, ChildStream)
    return stream.exit_code


async def test_a_good_child_that_flushes_after_the_end_of_its_stdin_is_never_signalled(tmp_path: Path) -> None:
    """B12: it writes more than a pipe holds after stdin has ended, when nobody on our side reads any more."""
    code = (
        "import signal, sys, pathlib\n"
        f"note = pathlib.Path({str(tmp_path / 'note')!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: note.write_text('signalled'))\n"
        "sys.stdin.buffer.read(); sys.stdout.buffer.write(bytes(5_000_000)); sys.stdout.flush()\n"
        "note.exists() or note.write_text('flushed')"
    )
    transport, _ = transport_for("stdio:")
    async with transport.connect(python(code)) as stream:
        await stream.send([b"work"])
    assert (tmp_path / "note").read_text() == "flushed"
    assert exit_code(stream) == 0


async def test_a_stubborn_child_is_asked_twice_and_then_killed_with_its_group() -> None:
    """B12: it ignores the end of its stdin and SIGTERM."""
    transport, _ = transport_for("stdio:")
    async with transport.connect(shell(f"sleep 1000 & echo $!; {IGNORES_TERM}")) as stream:
        grandchild, _, _ = (await receive(stream, 1)).partition(b"\n")
    assert exit_code(stream) == -signal.SIGKILL
    await gone(int(grandchild))


async def gone(pid: int) -> None:
    """Wait until a process that has been killed is dead."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


async def test_a_child_that_ignores_its_stdin_is_ended_by_sigterm() -> None:
    transport, _ = transport_for("stdio:")
    async with transport.connect("sleep 1000") as stream:
        pass
    assert exit_code(stream) == -signal.SIGTERM


async def test_a_cancelled_close_kills_at_once() -> None:
    transport, _ = transport_for("stdio:")
    with trio.CancelScope() as scope:
        async with transport.connect(shell(IGNORES_TERM)) as stream:
            await receive(stream, 6)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert exit_code(stream) == -signal.SIGKILL


async def test_what_a_good_child_leaves_in_its_group_is_killed() -> None:
    transport, _ = transport_for("stdio:")
    async with transport.connect(shell("sleep 1000 & echo $!; exec cat")) as stream:
        grandchild = int(await receive(stream, 2))
        assert is_alive(grandchild)
    await gone(grandchild)
    assert exit_code(stream) == 0


async def test_stderr_is_always_read_and_its_tail_kept() -> None:
    """B18: far more than a pipe holds is written to stderr before the answer."""
    transport, _ = transport_for("stdio:")
    code = "import sys; sys.stderr.write('x' * 5_000_000 + 'the end'); sys.stderr.flush(); print('answer')"
    async with transport.connect(python(code)) as stream:
        assert await receive_all(stream) == b"answer\n"
        assert isinstance(stream, ChildStream)
        assert len(stream.stderr) == STDERR_TAIL
        assert stream.diagnose().endswith("xxx" + "the end")


@pytest.mark.parametrize(
    ("script", "diagnosis"),
    [
        ("echo no such worker >&2; exit 127", "the command ended with exit status 127; its stderr: no such worker"),
        ("kill -9 $$", "the command was killed by signal 9 (Killed); its stderr is empty"),
    ],
)
async def test_at_the_end_the_stream_knows_why(script: str, diagnosis: str) -> None:
    """B63."""
    transport, _ = transport_for("stdio:")
    async with transport.connect(shell(script)) as stream:
        assert await receive_all(stream) == b""
        assert stream.diagnose() == diagnosis


@pytest.mark.parametrize(
    ("command", "reason"), [("/missing/worker", "command not found"), ("/etc/passwd", "Permission denied")]
)
async def test_a_command_that_cannot_start_is_a_launch_error(command: str, reason: str) -> None:
    transport, _ = transport_for("stdio:")
    with pytest.raises(LaunchError, match=reason):
        async with transport.connect(command):
            pass


@pytest.mark.parametrize("command", ["", "  ", "'unclosed"])
async def test_a_command_that_is_none_is_a_launch_error(command: str) -> None:
    transport, _ = transport_for("stdio:")
    with pytest.raises(LaunchError, match="stdio:"):
        async with transport.connect(command):
            pass


async def test_the_error_of_the_body_comes_out_as_it_is() -> None:
    transport, _ = transport_for("stdio:")
    with pytest.raises(KeyError):
        async with transport.connect("cat"):
            raise KeyError


async def test_the_child_gets_the_environment_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """B65."""
    monkeypatch.setenv("RLM_TOKEN", "secret")
    monkeypatch.setenv("KEPT", "yes")
    transport, _ = transport_for("stdio:")
    async with transport.connect("cat /proc/self/environ") as stream:
        environment = (await receive_all(stream)).split(b"\0")
    assert b"KEPT=yes" in environment
    assert not any(b"secret" in each for each in environment)


async def test_the_child_has_a_session_of_its_own_and_only_three_descriptors() -> None:
    transport, _ = transport_for("stdio:")
    code = "import os; print(os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd'))[:4])"
    async with transport.connect(python(code)) as stream:
        assert await receive_all(stream) == b"True ['0', '1', '2', '3']\n"  # 3 is the listing itself


async def test_descriptors_return_to_their_number_after_connections_and_failures() -> None:
    """B71."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    transport, _ = transport_for("stdio:")
    for _ in range(20):
        async with transport.connect("true"):
            pass
        with pytest.raises(LaunchError):
            async with transport.connect("/missing/worker"):
                pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


SERVER = """
import os, subprocess, sys, trio
from rlm_wire.errors import TransportError
from rlm_wire.transports import transport_for

async def main():
    transport, address = transport_for("stdio:")
    try:
        async with transport.listen(address) as listener:
            stream = await listener.accept()
            print("stray print", flush=True)
            subprocess.run(["sh", "-c", "echo stray child; cat"], check=True)
            buffer = memoryview(bytearray(100))
            while size := await stream.receive_into(buffer):
                await stream.send([buffer[:size]])
            await stream.aclose()
            try:
                await listener.accept()
            except trio.EndOfChannel:
                sys.stderr.write("no more")
    except TransportError as error:
        sys.stderr.write(f"refused: {error}")

trio.run(main)
"""


async def test_stray_output_of_a_server_goes_to_stderr_and_its_children_get_no_input() -> None:
    transport, _ = transport_for("stdio:")
    async with transport.connect(python(SERVER)) as stream:
        await stream.send([b"protocol"])
        assert await receive(stream, 8) == b"protocol"
    assert isinstance(stream, ChildStream)
    assert stream.stderr.startswith("stray print\nstray child\n")


def test_a_server_without_stdin_refuses_and_one_without_stderr_works() -> None:
    """B10, in stdio mode."""
    command = shlex.join([sys.executable, "-c", SERVER])
    refused = subprocess.run(["sh", "-c", f"{command} <&-"], capture_output=True, text=True, check=True)
    assert "refused: stdio: stdin or stdout is closed" in refused.stderr
    quiet = subprocess.run(["sh", "-c", f"echo hi | {command} 2>&-"], capture_output=True, text=True, check=False)
    assert quiet.stdout == "hi\n"


@pytest.mark.parametrize("source", [os.devnull, __file__], ids=["null", "file"])
def test_a_server_whose_stdin_is_no_client_says_so(source: str) -> None:
    """As under `docker exec` without -i."""
    with open(source) as stdin:
        refused = subprocess.run(
            [sys.executable, "-c", SERVER], stdin=stdin, capture_output=True, text=True, check=True
        )
    assert refused.stderr.startswith("refused: stdio: stdin is /dev/null or a file, not a client")
    assert "-i" in refused.stderr


async def test_a_listener_takes_no_command() -> None:
    transport, _ = transport_for("stdio:")
    with pytest.raises(TransportError, match="takes no command"):
        async with transport.listen("cat"):
            pass


async def test_stderr_is_passed_on_when_asked_for() -> None:
    code = (
        "import trio; from rlm_wire.transports.stdio import StdioTransport\n"
        "async def main():\n"
        "    async with StdioTransport(echo_stderr=True).connect(\"sh -c 'echo for people >&2'\") as stream:\n"
        "        await stream.receive_into(memoryview(bytearray(1)))\n"
        "trio.run(main)"
    )
    assert isinstance(transport_for("stdio:")[0], StdioTransport)
    done = await trio.run_process([sys.executable, "-c", code], capture_stderr=True)
    assert done.stderr == b"for people\n"
