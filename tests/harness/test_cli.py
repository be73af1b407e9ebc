"""The real command line in its own process, with a real model server and the worker that it starts itself."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from rlm_harness.demo.processes import leftovers

KEY = "sk-command-line"

STUBBORN = """\
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(1000)"""
"""A cell that cannot be interrupted: the worker has to wait before it kills its kernel."""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "project").mkdir()
    return tmp_path


class Program:
    """A running `rlm-harness run`; its events as they come."""

    def __init__(self, process):
        self.process = process
        self.events = []
        self.errors = b""
        self._rest = b""

    async def next_event(self):
        while b"\n" not in self._rest:
            received = await self.process.stdout.receive_some()
            if not received:
                return None
            self._rest += received
        line, self._rest = self._rest.split(b"\n", 1)
        self.events.append(json.loads(line))
        return self.events[-1]

    async def wait_for(self, name):
        while event := await self.next_event():
            if event["event"] == name:
                return event
        pytest.fail(f"no {name} in {self.events}: {self.errors!r}")

    async def end(self):
        """The exit code, with all events read."""
        while await self.next_event():
            pass
        return await self.process.wait()

    async def read_errors(self):
        async for data in self.process.stderr:
            self.errors += data


def environment(place, **changes):
    return os.environ | {"OPENAI_API_KEY": KEY, "RLM_HOME": str(place / "home"), "NO_COLOR": "1"} | changes


def arguments(server, place, *more):
    return [
        *(sys.executable, "-m", "rlm_harness", "run", "--model", "m", "--base-url", server.base_url),
        *("--cwd", str(place / "project"), *more, "go"),
    ]


@pytest.fixture
async def start(model_server, place):
    """Starts the command with `--json`; at the end nothing of it may be left."""
    async with trio.open_nursery() as nursery:

        async def start():
            process = await nursery.start(
                partial(
                    trio.run_process,
                    arguments(model_server, place, "--json"),
                    env=environment(place),
                    check=False,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            )
            program = Program(process)
            nursery.start_soon(program.read_errors)
            return program

        yield start
        nursery.cancel_scope.cancel()


async def run(server, place, *more, **changes):
    return await trio.run_process(
        arguments(server, place, *more),
        env=environment(place, **changes),
        check=False,
        capture_stdout=True,
        capture_stderr=True,
    )


def nothing_left(place):
    return leftovers(place, f"RLM_HOME={place}")


async def test_a_task_is_done_in_the_directory_and_shown(model_server, script, place):
    model_server.answers = [
        script.calls("bash", {"command": "echo made > it; cat it"}, text="I make it."),
        script.says("It is made."),
    ]
    done = await run(model_server, place)
    shown = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert (place / "project" / "it").read_text() == "made\n"
    for part in (
        "── turn 1",
        "I make it.",
        "▶ bash",
        "  made",
        "✓ bash ok",
        "── turn 2",
        "It is made.",
        "── answered · 2",
    ):
        assert part in shown
    assert "\x1b" not in shown
    assert done.stderr == b""
    assert nothing_left(place) == []


async def test_json_gives_one_event_a_line_and_the_ledger_is_where_it_says(model_server, script, place, start):
    model_server.answers = [script.calls("ipython", {"code": "6 * 7"}), script.says("42", usage=(100, 5))]
    program = await start()
    assert await program.end() == 0
    names = [event["event"] for event in program.events]
    assert names[0] == "session_started"
    assert names[-1] == "session_ended"
    ended = program.events[-1]
    assert (ended["stop"], ended["answer"], ended["turns"]) == ("answered", "42", 2)
    lines = Path(ended["ledger"]).read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines][-1] == "done"
    assert ended["ledger"].startswith(str(place / "home" / "sessions"))
    meta = json.loads(Path(ended["ledger"]).with_name("meta.json").read_text())
    assert (meta["status"], meta["turns"]) == ("answered", 2)


async def test_the_key_is_nowhere_that_a_tool_could_look(model_server, script, place, start):
    look = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; true"
    model_server.answers = [script.calls("bash", {"command": look}), script.says("done")]
    program = await start()
    assert await program.end() == 0
    seen = json.dumps(program.events) + Path(program.events[-1]["ledger"]).read_text()
    assert "PATH=" in seen
    assert KEY not in seen
    assert model_server.headers[0]["authorization"] == f"Bearer {KEY}"


async def test_one_ctrl_c_stops_the_tool_keeps_its_output_and_leaves_nothing(model_server, script, place, start):
    model_server.answers = [script.calls("bash", {"command": "echo up; sleep 1000 & sleep 1000"})]
    program = await start()
    await program.wait_for("tool_output")
    program.process.send_signal(signal.SIGINT)
    assert await program.end() == 130
    finished = [event for event in program.events if event["event"] == "tool_finished"]
    assert [(event["status"], event["content"].splitlines()[0]) for event in finished] == [("cancelled", "up")]
    ended = program.events[-1]
    assert (ended["event"], ended["stop"]) == ("session_ended", "cancelled")
    records = [json.loads(line) for line in Path(ended["ledger"]).read_text().splitlines()]
    assert [record["type"] for record in records][-3:] == ["tool_result", "prompt_rollback", "context_window"]
    assert nothing_left(place) == []
    assert program.errors == b""


async def test_a_terminals_ctrl_c_reaches_the_whole_group_and_still_only_cancels_the_turn(
    model_server, script, place, start
):
    model_server.answers = [script.calls("ipython", {"code": "print('up')\nimport time\ntime.sleep(1000)"})]
    program = await start()
    await program.wait_for("tool_output")
    os.killpg(program.process.pid, signal.SIGINT)
    assert await program.end() == 130
    finished = [event for event in program.events if event["event"] == "tool_finished"]
    assert finished[0]["status"] == "cancelled"
    assert finished[0]["content"].startswith("up\n")
    assert nothing_left(place) == []


async def test_ctrl_c_in_a_model_call_ends_it(model_server, script, place, start):
    stalling = script.says("")
    stalling.data, stalling.stall = script.events(script.delta(content="Hm"), end=False, done=False), True
    model_server.answers = [stalling]
    program = await start()
    await program.wait_for("text_delta")
    program.process.send_signal(signal.SIGINT)
    assert await program.end() == 130
    await model_server.client_left.wait()
    assert nothing_left(place) == []


async def test_a_second_ctrl_c_leaves_at_once_and_leaves_nothing(model_server, script, place, start):
    model_server.answers = [script.calls("ipython", {"code": STUBBORN})]
    program = await start()
    await program.wait_for("tool_output")
    program.process.send_signal(signal.SIGINT)
    await program.wait_for("cancelling")
    program.process.send_signal(signal.SIGINT)
    assert await program.end() == 130
    assert program.errors == b""
    assert "tool_finished" not in [event["event"] for event in program.events]
    assert nothing_left(place) == []


async def test_sigterm_ends_everything(model_server, script, place, start):
    model_server.answers = [script.calls("bash", {"command": "echo up; sleep 1000"})]
    program = await start()
    await program.wait_for("tool_output")
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 143
    assert nothing_left(place) == []


async def test_a_reader_that_leaves_ends_the_session(model_server, script, place, start):
    model_server.answers = [script.calls("bash", {"command": "while :; do echo again; sleep 0.05; done"})]
    program = await start()
    await program.wait_for("tool_output")
    await program.process.stdout.aclose()
    assert await program.process.wait() == 1
    assert program.errors == b""
    assert nothing_left(place) == []


@pytest.mark.parametrize(
    ("code", "advice"),
    [(401, "the API key is wrong"), (404, "--base-url usually ends in /v1"), (400, "refuses the request")],
)
async def test_a_refused_request_is_one_clear_line(model_server, script, place, code, advice):
    model_server.answers = [script.status(code, {"error": {"message": f"for {KEY}: no"}})]
    done = await run(model_server, place)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert advice in done.stderr.decode()
    assert KEY.encode() not in done.stderr + done.stdout
    assert nothing_left(place) == []


@pytest.mark.parametrize(
    ("more", "changes", "words"),
    [
        ([], {"OPENAI_API_KEY": "two words"}, "OPENAI_API_KEY has characters"),
        (["--api-key-file", "/nowhere"], {}, "cannot read /nowhere"),
        (["--token-file", "/nowhere"], {}, "cannot read /nowhere"),
        (["--cwd", "/nowhere"], {}, "/nowhere"),
        (["--workspace", "carrier-pigeon:home"], {}, "carrier-pigeon"),
        (["--workspace", "tcp://127.0.0.1:1"], {}, "127.0.0.1:1"),
        (["--base-url", "nonsense"], {}, "not an http:// or https:// URL"),
        (["--max-turns", "0"], {}, "not a positive whole number"),
        ([], {"RLM_HOME": "/dev/null"}, "RLM_HOME names another place"),
    ],
)
async def test_a_users_mistake_is_one_line_and_exit_code_2(model_server, place, more, changes, words):
    done = await run(model_server, place, *more, **changes)
    assert done.returncode == 2
    message = done.stderr.decode().splitlines()[-1]
    assert words in message
    assert message.startswith("rlm-harness")
    assert "Traceback" not in done.stderr.decode()


async def test_without_key_the_default_endpoint_is_not_asked(place):
    done = await trio.run_process(
        [sys.executable, "-m", "rlm_harness", "run", "--model", "m", "go"],
        env={name: value for name, value in environment(place).items() if name != "OPENAI_API_KEY"},
        check=False,
        capture_stderr=True,
    )
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"OPENAI_API_KEY" in done.stderr


@pytest.mark.parametrize("command", [[], ["run"], ["demo"]])
async def test_help_explains(command):
    done = await trio.run_process([sys.executable, "-m", "rlm_harness", *command, "--help"], capture_stdout=True)
    assert b"usage: rlm-harness" in done.stdout
    if command != ["demo"]:
        assert b"examples:" in done.stdout


async def test_the_task_may_hold_bytes_that_are_no_text(model_server, script, place):
    model_server.answers = [script.says("ok")]
    command = [*arguments(model_server, place)[:-1], b"caf\xe9"]
    done = await trio.run_process(command, env=environment(place), capture_stdout=True)
    assert done.returncode == 0
    assert model_server.requests[0]["messages"][1]["content"] == "caf\ufffd"
