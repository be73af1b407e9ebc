"""`rlm-wire`: what it prints, and that a mistake is one line that shows no token."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from facade_server import TOKEN, FacadeServer, facade_server

import rlm_wire
from rlm_wire.schema_export import export
from rlm_wire.tokens import take_token

WRONG = "wrong-token-0123456789"


@pytest.fixture(scope="module")
def server() -> Iterator[FacadeServer]:
    with facade_server() as server:
        yield server


def start(
    *arguments: str, token: str | None = None, pass_fds: tuple[int, ...] = (), stdout: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "RLM_TOKEN"}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "rlm_wire", *arguments],
        env=environment | ({"RLM_TOKEN": token} if token else {}),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
    )


def run(*arguments: str, token: str | None = None, pass_fds: tuple[int, ...] = ()) -> tuple[int, str, str]:
    with start(*arguments, token=token, pass_fds=pass_fds) as program:
        out, err = program.communicate(timeout=120)
    return program.returncode, out, err


def test_ping_says_who_answers_and_what_was_agreed(server: FacadeServer) -> None:
    status, out, err = run("ping", server.url.result(), token=TOKEN)
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["software", "protocol", "features", "limits", "round"]
    assert "version 1, codec msgpack" in out
    assert "facade" in out
    assert "message 16777216" in out


def test_ping_for_programs_is_one_object(server: FacadeServer) -> None:
    status, out, _ = run("ping", server.url.result(), "--json", "--count", "3", token=TOKEN)
    found = json.loads(out)
    assert status == 0
    assert out.count("\n") == 1
    assert found.keys() == {"url", "software", "version", "codec", "features", "limits", "round_trips"}
    assert len(found["round_trips"]) == 3


def test_the_token_comes_from_a_file_or_a_descriptor(server: FacadeServer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    assert run("ping", server.url.result(), "--token-file", str(path), token=WRONG)[0] == 0
    with path.open("rb") as file:
        descriptor = file.fileno()
        assert run("ping", server.url.result(), "--token-fd", str(descriptor), pass_fds=(descriptor,))[0] == 0


def test_a_wrong_token_is_one_line_without_the_token(server: FacadeServer) -> None:
    status, out, err = run("ping", server.url.result(), token=WRONG)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "authentication failed (is our token the one it was started with?)" in err
    assert WRONG not in err


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["ping", "tcp://127.0.0.1:1"], 1, "Connection refused"),
        (["ping", "nonsense:x"], 2, "no transport for 'nonsense': known are stdio:, relay:, tcp:, tls:, unix:"),
        (["ping", "x"], 2, "is not a URL"),
        (["ping", "memory:x"], 2, "tasks of one process"),
        (["ping", "tcp://nonsense"], 2, "must be HOST:PORT"),
        (["ping", "tls:"], 2, "must be HOST:PORT"),
        (["ping", "stdio:/no/such/command"], 1, "command not found"),
        (["ping", "stdio:sh -c 'echo this is why >&2; exit 127'"], 1, "this is why"),
        (["ping", "tcp://127.0.0.1:1", "--token-file", "/no/such/file"], 2, "No such file"),
        (["ping", "tcp://127.0.0.1:1", "--token-file", "/dev/null"], 2, "/dev/null holds no token"),
        (["ping", "tcp://127.0.0.1:1", "--token-fd", "987"], 2, "Bad file descriptor"),
        (["ping", "tcp://127.0.0.1:1", "--token-fd", "-1"], 2, "cannot be read from descriptor -1"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], status: int, words: str) -> None:
    returncode, out, err = run(*arguments)
    assert (returncode, out, err.count("\n")) == (status, "", 1), err
    assert err.startswith("rlm-wire: ")
    assert words in err


@pytest.mark.parametrize(
    "arguments", [[], ["frobnicate"], ["ping"], ["ping", "tcp:", "--count", "0"], ["ping", "tcp:", "--count", "many"]]
)
def test_wrong_usage_is_told_so(arguments: list[str]) -> None:
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("rlm-wire: ")
    assert err.endswith(" --help)\n")


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_token_file_that_others_can_read_is_told_of(server: FacadeServer, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(mode)
    status, _, err = run("ping", server.url.result(), "--token-file", str(path))
    assert (status, err) == (0, f"rlm-wire: warning: others can read the secret in {path}; chmod 600 it\n")


@pytest.mark.parametrize("program", ["rlm_wire", "rlm_worker", "rlm_harness"])
def test_every_command_line_tells_its_version_its_exit_codes_and_of_a_mistake_in_the_same_way(program: str) -> None:
    def said(*arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", program, *arguments], capture_output=True, text=True, check=False, timeout=120
        )
        return done.returncode, done.stdout, done.stderr

    name = program.replace("_", "-")
    assert said("--version") == (0, f"{name} {rlm_wire.__version__}\n", "")
    status, out, err = said("frobnicate")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{name}: ")
    assert err.endswith(f"(see {name} --help)\n")
    subcommands = re.findall(r"^    (\w+) +\w", said("--help")[1], re.MULTILINE)
    assert len(subcommands) == {"rlm-worker": 3, "rlm-harness": 6}.get(name, 2)
    for words in ([], *([word] for word in subcommands)):
        assert "Exit codes: 0 " in said(*words, "--help")[1]


def test_help_shows_examples() -> None:
    status, out, _ = run("--help")
    assert status == 0
    assert "rlm-wire ping tcp://127.0.0.1:4711 --token-file token" in out


def test_schema_prints_what_is_exported() -> None:
    status, out, _ = run("schema")
    assert status == 0
    assert json.loads(out) == json.loads(json.dumps(export()))


def test_a_reader_that_leaves_early_is_no_error_message() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with start("schema", stdout=writer) as program:
        os.close(writer)
        _, err = program.communicate(timeout=120)
    assert err == ""


def test_an_interrupt_is_quiet() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        start("ping", f"tcp://127.0.0.1:{silent.getsockname()[1]}", token=TOKEN) as program,
    ):
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(60)
            assert connection.recv(8)
            program.send_signal(signal.SIGINT)
            assert program.communicate(timeout=120) == ("", "")
    assert program.returncode == 130


def test_a_token_taken_from_the_environment_is_gone_from_it() -> None:
    script = """
from pathlib import Path
from rlm_wire.tokens import take_token
token = take_token()
print(token.decode(), "RLM_TOKEN" in __import__("os").environ, token in Path("/proc/self/environ").read_bytes())
"""
    environment = {**os.environ, "RLM_TOKEN": " swordfish\n"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "swordfish False False\n"


def test_no_token_is_none() -> None:
    assert take_token() is None
