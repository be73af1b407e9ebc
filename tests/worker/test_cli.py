"""`rlm-worker serve` as its users run it: real processes, sockets and signals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trustme

import rlm_harness
import rlm_wire
from rlm_wire.methods.kernels import Execute
from rlm_wire.methods.sessions import OpenAgent, OpenWorkspace
from rlm_wire.methods.tools import Bash, Fetch
from rlm_wire.transports.certificates import verifying_client_context
from rlm_worker.processes import process_table

TOKEN = "correct horse battery staple"
COMMAND = [sys.executable, "-m", "rlm_worker", "serve"]
Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a worker and return it with the address that it prints; it is ended with the test."""
    workers: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **options: object) -> tuple[subprocess.Popen[str], str]:
        worker: subprocess.Popen[str] = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, **options
        )  # type: ignore[call-overload]
        workers.append(worker)
        assert worker.stdout is not None
        line = worker.stdout.readline()
        assert line.startswith("listening on "), line + worker.communicate()[1]
        return worker, line.removeprefix("listening on ").strip()

    yield run
    for worker in workers:
        worker.terminate()
        worker.communicate(timeout=30)


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Run a worker that must not start; returns the one line it says."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, env=env, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rlm-worker: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


async def says_hi(url: str, token: str | None = TOKEN) -> None:
    async with rlm_wire.connect(url, token=token) as peer:
        await peer.call(OpenWorkspace())
        agent = (await peer.call(OpenAgent())).agent
        assert (await peer.call(Bash(agent, "echo hi"))).output.text == "hi\n"


async def test_tcp_with_a_token_file(start: Start, token_file: Path) -> None:
    _, url = start("--tcp", "127.0.0.1:0", "--token-file", str(token_file))
    assert url.startswith("tcp://127.0.0.1:")
    await says_hi(url)
    with pytest.raises(rlm_wire.AuthenticationError):
        await says_hi(url, "wrong")


async def test_tls_with_a_certificate_made_on_the_spot_and_a_token_from_a_descriptor(start: Start) -> None:
    read, write = os.pipe()
    os.write(write, TOKEN.encode())
    os.close(write)
    _, url = start("--tls", "127.0.0.1:0", "--token-fd", str(read), pass_fds=[read])
    os.close(read)
    assert url.startswith("tls://127.0.0.1:")
    await says_hi(url)


async def test_tls_for_clients_with_a_certificate_of_one_authority_only(
    start: Start, token_file: Path, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("server", "client"):
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    files = ("--certificate", "server.pem", "--client-ca", "ca.pem", "--token-file", str(token_file))
    _, url = start("--tls", "127.0.0.1:0", *files)
    with pytest.raises(rlm_wire.WireError):
        await says_hi(url)
    context = verifying_client_context(authority=tmp_path / "ca.pem", certificate=tmp_path / "client.pem")
    async with rlm_harness.Workspace.connect(url, TOKEN, ssl_context=context) as workspace:
        assert workspace.info.cwd == str(tmp_path)


async def test_a_unix_socket_needs_no_token(start: Start, tmp_path: Path) -> None:
    _, url = start("--unix", "worker.sock")
    assert url == f"unix:{tmp_path}/worker.sock"
    await says_hi(url, None)


async def test_how_long_it_keeps_what_a_harness_has_left_is_the_workers_to_say(start: Start, tmp_path: Path) -> None:
    limits = rlm_wire.Limits(lease=3600)
    for given, lease in ([], 60), (["--lease", "600"], 600), (["--lease", "0"], 0):
        _, url = start("--unix", str(tmp_path / f"socket-{lease}"), *given)
        async with rlm_wire.connect(url, limits=limits) as peer:
            assert peer.info.limits.lease == lease


async def test_stdio_ends_with_its_client(tmp_path: Path) -> None:
    async with rlm_wire.connect(f"stdio:{sys.executable} -m rlm_worker serve --stdio --cwd {tmp_path}") as peer:
        info = await peer.call(OpenWorkspace())
        assert info.cwd == str(tmp_path)
        assert process_table.row(info.pid) is not None
    assert process_table.row(info.pid) is None


def test_stdio_on_a_terminal_is_taken_for_a_mistake() -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "--stdio"]
    for streams in ({"stdin": theirs, "stdout": subprocess.PIPE}, {"stdin": subprocess.DEVNULL, "stdout": theirs}):
        done = subprocess.run(command, **streams, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert done.stderr.startswith("rlm-worker: --stdio speaks a protocol")
        assert "--tcp" in done.stderr
        assert "--unix" in done.stderr
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\n\r\n"])
def test_a_client_on_stdio_that_is_refused_shows_in_the_exit_code(sent: str) -> None:
    done = subprocess.run(
        [*COMMAND, "--stdio"],
        input=sent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("rlm-worker: refused the client on stdio: ")
    assert done.stderr.count("\n") == 1


async def test_a_token_file_that_others_can_read_is_told_of(start: Start, token_file: Path) -> None:
    token_file.chmod(0o644)
    worker, url = start("--tcp", "127.0.0.1:0", "--token-file", str(token_file))
    await says_hi(url)
    worker.terminate()
    _, errors = await trio.to_thread.run_sync(worker.communicate)
    assert errors == f"rlm-worker: warning: others can read the secret in {token_file}; chmod 600 it\n"


def test_help_shows_examples() -> None:
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True)
    assert "rlm-worker serve --tcp 127.0.0.1:0 --token-file token" in done.stdout


def test_a_worker_that_strangers_could_reach_needs_a_token(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    clean = {name: value for name, value in os.environ.items() if name != "RLM_TOKEN"}
    assert "token_urlsafe" in refused("--tcp", "127.0.0.1:0", env=clean)
    assert "token_urlsafe" in refused("--tls", "127.0.0.1:0", env=clean)
    assert "holds no token" in refused("--tcp", "127.0.0.1:0", "--token-file", str(empty))
    assert "No such file" in refused("--tcp", "127.0.0.1:0", "--token-file", str(tmp_path / "missing"))
    assert "RLM_TOKEN holds no token" in refused("--tcp", "127.0.0.1:0", env={**clean, "RLM_TOKEN": " "})
    assert "Bad file descriptor" in refused("--tls", "127.0.0.1:0", "--token-fd", "99")


def test_mistakes_get_one_line(tmp_path: Path, token_file: Path) -> None:
    token = ("--token-file", str(token_file))
    assert "required" in refused()
    assert "not allowed with" in refused("--stdio", "--tcp", "127.0.0.1:0")
    for lease in ("soon", "-1", "1.5", "999999999"):
        assert "whole number of seconds" in refused("--unix", "socket", "--lease", lease)
    assert "not a directory" in refused("--stdio", "--cwd", str(tmp_path / "missing"))
    assert "--tls" in refused("--tcp", "127.0.0.1:0", *token, "--certificate", "x")
    assert "--certificate" in refused("--tls", "127.0.0.1:0", *token, "--client-ca", "x")
    assert "missing.pem" in refused("--tls", "127.0.0.1:0", *token, "--certificate", "missing.pem")
    for address, problem in (
        ("nonsense", "there is no port"),
        ("host:99999", "'99999' is no port"),
        ("host:-1", "'-1' is no port"),
        ("host:abc", "'abc' is no port"),
        ("", "there is no port"),
    ):
        form = "the address must be HOST:PORT, or [HOST]:PORT for IPv6, with a port from 0 to 65535"
        for scheme in ("tcp", "tls"):
            assert f"{scheme}://{address}: {problem}: {form}" in refused(f"--{scheme}", address, *token)
    assert "not a socket" in refused("--unix", "")
    assert "positive whole number" in refused("--tcp", "127.0.0.1:0", *token, "--silence", "0")
    assert str(tmp_path) in refused("--unix", str(tmp_path / "missing" / "socket"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly_with_all_that_runs(
    start: Start, number: signal.Signals, wait_for_end: Callable[[int], bool]
) -> None:
    worker, url = start("--unix", "worker.sock")
    async with rlm_wire.connect(url) as peer:
        await peer.call(OpenWorkspace())
        agent = (await peer.call(OpenAgent())).agent
        kernel = int((await peer.call(Execute(agent, "import os; os.getpid()"))).result or 0)
        async with peer.open(Bash(agent, "echo $$; sleep 1000 | sleep 1000")) as call:
            command = int((await anext(aiter(call))).data)
            worker.send_signal(number)
            with pytest.raises(rlm_wire.WireError):
                await call.result()
    _, errors = await trio.to_thread.run_sync(worker.communicate)
    assert (worker.returncode, errors) == (0, "")
    assert wait_for_end(kernel)
    assert [row for row in process_table.table().values() if command in (row.pid, row.session)] == []


async def test_b10_stdin_is_no_life_line_for_a_listening_worker(start: Start, tmp_path: Path) -> None:
    _, url = start("--unix", "a.sock", stdin=subprocess.DEVNULL)
    await says_hi(url, None)
    script = f"exec {' '.join(COMMAND)} --unix b.sock <&- 2>&-"
    closed = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    with closed:
        assert closed.stdout is not None
        url = closed.stdout.readline().removeprefix("listening on ").strip()
        await says_hi(url, None)
        for number in (0, 2):
            assert str(Path(f"/proc/{closed.pid}/fd/{number}").readlink()) == "/dev/null"
        closed.terminate()
    assert closed.returncode == 0


async def test_b64_b65_keys_and_tokens_are_where_no_command_can_see_them(start: Start) -> None:
    secrets = {"FAKE_API_KEY": "open sesame", "RLM_TOKEN": TOKEN}
    worker, url = start("--tcp", "127.0.0.1:0", env={**os.environ, **secrets})
    async with rlm_wire.connect(url, token=TOKEN) as peer:
        await peer.call(OpenWorkspace())
        agent = (await peer.call(OpenAgent())).agent
        own = f"/proc/{worker.pid}"
        script = f"env; cat {own}/environ {own}/cmdline /proc/$PPID/environ /proc/$PPID/cmdline"
        seen = (await peer.call(Bash(agent, script))).output.text
        cell = await peer.call(Execute(agent, f"import os; str(dict(os.environ)) + open('{own}/environ').read()"))
        seen += cell.result or str(cell)
    assert "PATH" in seen
    for secret in secrets.values():
        assert secret not in seen


async def test_b16_nothing_but_frames_reaches_the_protocol(tmp_path: Path) -> None:
    async with rlm_wire.connect(f"stdio:{sys.executable} -m rlm_worker serve --stdio --verbose") as peer:
        await peer.call(OpenWorkspace())
        agent = (await peer.call(OpenAgent())).agent
        for number in range(20):
            result = await peer.call(Bash(agent, f"echo stray > /proc/$PPID/fd/1; echo {number}"))
            assert result.output.text == f"{number}\n"


async def test_verbose_logs_show_no_keys_of_fetched_addresses(start: Start) -> None:
    worker, url = start("--unix", "worker.sock", "--verbose")

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        place = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        async with rlm_wire.connect(url) as peer:
            await peer.call(OpenWorkspace())
            agent = (await peer.call(OpenAgent())).agent
            fetched = await peer.call(Fetch(agent, f"http://user:s3cret@{place}/?key=s3cret"))
        nursery.cancel_scope.cancel()
    worker.terminate()
    _, errors = await trio.to_thread.run_sync(worker.communicate)
    assert (fetched.text, fetched.url) == ("ok", f"http://{place}/?key=s3cret")
    assert "INFO rlm_" in errors
    assert "s3cret" not in errors
