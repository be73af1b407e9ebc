"""A workspace behind ssh: a real sshd on loopback, whose banner and whose users' shells talk before the protocol does.

Fresh machines have no sshd; `.ci/run` installs it. Without one these tests are skipped, but not where CI is set.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import rlm_wire
from rlm_harness import Workspace
from rlm_worker.processes import process_table

WORKER = shlex.join([sys.executable, "-m", "rlm_worker"])
WAIT_FOR_GO = "echo ran >> ran; echo begun; while [ ! -e go ]; do sleep 0.01; done; rm go; echo over"
PATIENCE = 30.0

SSHD_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {place}/host
AuthorizedKeysFile {place}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Banner {place}/banner
SetEnv HOME={place}
"""

SSH_CONFIG = """\
Host box
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {place}/key
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {place}/known
  BatchMode yes
"""


class NoSshd(Exception):
    """There is no sshd here that could be started; why."""


class Server:
    """An sshd of our own, with keys of its own, for our own user. `ssh` are the words that lead a command to it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ssh = ["ssh", "-F", str(place / "ssh_config"), "box"]
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        if program is None or shutil.which("ssh") is None:
            raise NoSshd("sshd or ssh is not installed")
        for name in ("host", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)], check=True)
        (place / "banner").write_text("For authorized users only\n")
        (place / ".bashrc").write_text("echo Welcome to this machine; echo 3 updates are waiting >&2\n")
        self._process = self._start(program)

    def _start(self, program: str) -> subprocess.Popen[str]:
        while True:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self._configure(port)
            config = str(self.place / "sshd_config")
            test = subprocess.run([program, "-t", "-f", config], capture_output=True, text=True, check=False)
            if test.returncode:
                raise NoSshd(f"sshd cannot start: {test.stderr.strip()}")
            process = subprocess.Popen([program, "-D", "-e", "-f", config], stderr=subprocess.PIPE, text=True)
            assert process.stderr is not None
            said = process.stderr.readline()
            if said.startswith("Server listening on "):
                return process
            process.terminate()
            process.communicate()
            if "in use" not in said:  # somebody else may have got the port
                raise NoSshd(f"sshd cannot start: {said.strip()}")

    def _configure(self, port: int) -> None:
        user = pwd.getpwuid(os.geteuid()).pw_name
        kind, key, *_ = (self.place / "host.pub").read_text().split()
        (self.place / "known").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
        (self.place / "sshd_config").write_text(SSHD_CONFIG.format(place=self.place, port=port))
        (self.place / "ssh_config").write_text(SSH_CONFIG.format(place=self.place, port=port, user=user))

    def url(self, scheme: str, command: str, *options: str) -> str:
        return f"{scheme}:{shlex.join([self.ssh[0], *options, *self.ssh[1:], command])}"

    def client(self) -> int:
        """The pid of the one ssh client that runs."""
        (pid,) = (
            row.pid
            for row in process_table.table().values()
            if row.alive and row.parent == os.getpid() and self.ssh[2].encode() in process_table.command_line(row.pid)
        )
        return pid

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        server = Server(tmp_path_factory.mktemp("sshd"))
    except NoSshd as problem:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{problem}, and CI has to test it", pytrace=False)
        pytest.skip(str(problem))
    yield server
    server.stop()


@pytest.fixture
def worker_socket(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "worker.sock"
    worker = subprocess.Popen([*shlex.split(WORKER), "serve", "--unix", str(path)], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline().startswith(b"listening on ")
    yield path
    worker.terminate()
    worker.communicate(timeout=PATIENCE)


@pytest.fixture
def relay(server: Server, worker_socket: Path) -> str:
    return server.url("relay", f"{WORKER} attach --unix {worker_socket}")


def test_this_server_does_talk_before_the_command_does(server: Server) -> None:
    done = subprocess.run([*server.ssh, "echo done"], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.endswith("done\n")
    assert "For authorized users only" in done.stderr
    if Path(pwd.getpwuid(os.geteuid()).pw_shell).name == "bash":
        assert done.stdout.startswith("Welcome to this machine\n")


async def test_a_killed_ssh_client_costs_time_only_and_every_call_runs_once(
    server: Server, relay: str, tmp_path: Path
) -> None:
    async with Workspace.connect(relay, cwd=str(tmp_path)) as workspace, workspace.agent() as agent:
        await agent.ipython("x = 41")
        for answered_while_away in (False, True):
            (tmp_path / "ran").unlink(missing_ok=True)
            begun = trio.Event()
            results: list[str] = []

            async def run(begun: trio.Event = begun, results: list[str] = results) -> None:
                done = await agent.bash(WAIT_FOR_GO, on_output=lambda _: begun.set())
                results.append(done.output.text)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await begun.wait()
                os.kill(server.client(), signal.SIGKILL)
                await workspace.peer.wait_state("reconnecting")
                assert "killed by signal 9" in workspace.peer.interruption
                if not answered_while_away:
                    await workspace.peer.wait_state("connected")
                (tmp_path / "go").touch()
            assert results == ["begun\nover\n"]
            assert (tmp_path / "ran").read_text() == "ran\n"
        assert (await agent.ipython("x + 1")).result == "42"
    assert workspace.receipt is not None
    assert workspace.receipt.confirmed


async def test_where_the_command_is_the_worker_a_killed_ssh_client_ends_both(server: Server, tmp_path: Path) -> None:
    url = server.url("stdio", f"{WORKER} serve --stdio --cwd {tmp_path}")
    async with Workspace.connect(url) as workspace, workspace.agent() as agent:
        pidfd = os.pidfd_open(workspace.info.pid)
        begun = trio.Event()

        async def run() -> None:
            with pytest.raises(rlm_wire.SessionLost) as caught:
                await agent.bash(WAIT_FOR_GO, on_output=lambda _: begun.set())
            assert caught.value.fate == "executed"
            assert "killed by signal 9" in str(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await begun.wait()
            os.kill(server.client(), signal.SIGKILL)
        assert workspace.peer.state == "closed"
    await trio.lowlevel.wait_readable(pidfd)  # the worker has ended
    os.close(pidfd)
    assert (tmp_path / "ran").read_text() == "ran\n"


@pytest.mark.parametrize("command", ["serve --stdio", "attach --unix {socket}"])
async def test_b75_a_terminal_in_the_path_is_refused_with_advice(
    server: Server, worker_socket: Path, command: str
) -> None:
    url = server.url("stdio", f"{WORKER} {command.format(socket=worker_socket)}", "-tt")
    with pytest.raises(rlm_wire.LaunchError, match=r"this is a terminal; .* without -t") as caught:
        async with rlm_wire.connect(url):
            pass
    assert caught.value.exit_code == 2


async def test_b63_what_ssh_or_the_far_shell_say_of_a_failure_is_told(server: Server) -> None:
    for command, options, said in (
        ("rlm-worker-is-not-here attach", (), "not found"),
        ("true", ("-o", "UserKnownHostsFile=/dev/null"), "Host key verification failed"),
        (f"{WORKER} attach --unix {server.place}/nobody", (), "No such file or directory"),
    ):
        with pytest.raises(rlm_wire.LaunchError, match=said):
            async with rlm_wire.connect(server.url("relay", command, *options)):
                pass
