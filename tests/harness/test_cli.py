"""Whole sessions of the real command line, with a real model server and the worker that it starts itself."""

import json
import os
import pty
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
import trio

from rlm_harness.demo.processes import leftovers
from rlm_harness.ledger.history import read_history

STUBBORN = """\
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(1000)"""
"""A cell that cannot be interrupted: the worker waits before it kills its kernel, unless its harness is gone."""


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


@pytest.fixture
async def start(command):
    """Starts the command with `--json`; at the end nothing of it may be left."""
    async with trio.open_nursery() as nursery:

        async def start():
            process = await nursery.start(
                partial(
                    trio.run_process,
                    command.arguments("--json"),
                    env=command.environment(),
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


def nothing_left(command):
    return leftovers(command.place, f"RLM_HOME={command.place}")


async def test_a_task_is_done_in_the_directory_and_shown(model_server, script, command):
    model_server.answers = [
        script.calls("bash", {"command": "echo made > it; cat it"}, text="I make it."),
        script.says("It is made."),
    ]
    done = await command.run()
    shown = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert (command.place / "project" / "it").read_text() == "made\n"
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
    assert nothing_left(command) == []


@pytest.mark.parametrize("setting", ["", "1"])
async def test_a_terminal_gets_colours_unless_they_are_not_wanted(model_server, script, command, setting):
    model_server.answers = [script.says("Hello.")]
    ours, theirs = pty.openpty()
    async with trio.open_nursery() as nursery:
        environment = command.environment(NO_COLOR=setting)
        nursery.start_soon(partial(trio.run_process, command.arguments(), env=environment, stdout=theirs))
        shown = await trio.to_thread.run_sync(read_until, ours, b"ledger: ")
    os.close(theirs)
    os.close(ours)
    assert b"Hello." in shown
    assert (b"\x1b[1m" in shown) is (setting == "")


def read_until(descriptor, end):
    seen = b""
    while end not in seen:
        seen += os.read(descriptor, 65536)
    return seen


async def test_json_gives_one_event_a_line_and_the_ledger_is_where_it_says(model_server, script, command, start):
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
    assert ended["ledger"].startswith(str(command.place / "home" / "sessions"))
    meta = json.loads(Path(ended["ledger"]).with_name("meta.json").read_text())
    assert (meta["status"], meta["turns"]) == ("answered", 2)


async def test_the_agents_that_a_cell_starts_are_told_of_by_name(model_server, script, command):
    code = "child = rlm.agent.spawn('add', name='kid')\nprint(child.result().answer)"
    model_server.answers = [script.calls("ipython", {"code": code}), script.says("4"), script.says("done")]
    done = await command.run("--json", "--tools", "ipython", "--max-depth", "1")
    assert done.returncode == 0
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (spawned,) = [event for event in events if event["event"] == "agent_spawned"]
    assert (spawned["name"], spawned["depth"], spawned["parent"]) == ("kid", 1, "")
    (answer,) = [e["content"] for e in events if e["event"] == "assistant_replied" and e["agent"] == spawned["agent"]]
    assert answer == "4"
    assert (events[-1]["turns"], events[-1]["usage"]["completion_tokens"]) == (3, 4)
    assert [tool["function"]["name"] for tool in model_server.requests[1]["tools"]] == ["ipython", "wait"]


async def test_a_model_that_can_see_is_shown_what_a_cell_shows(model_server, script, command):
    png = "89504e470d0a1a0a0000000049454e44ae426082"
    code = f"from IPython.display import Image\nImage(data=bytes.fromhex('{png}'), format='png')"
    model_server.answers = [script.calls("ipython", {"code": code}), script.says("done")]
    assert (await command.run("--pictures")).returncode == 0
    parts = model_server.requests[1]["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url"]


async def test_the_key_is_nowhere_that_a_tool_could_look(model_server, script, command, start):
    look = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; true"
    model_server.answers = [script.calls("bash", {"command": look}), script.says("done")]
    program = await start()
    assert await program.end() == 0
    seen = json.dumps(program.events) + Path(program.events[-1]["ledger"]).read_text()
    assert "PATH=" in seen
    assert command.key not in seen
    assert model_server.headers[0]["authorization"] == f"Bearer {command.key}"


async def test_a_command_that_fails_tells_its_exit_code(model_server, script, command, start):
    model_server.answers = [
        script.calls("bash", {"command": "exit 3"}),
        script.calls("bash", {"command": "kill -9 $$"}),
        script.says("done"),
    ]
    program = await start()
    assert await program.end() == 0
    finished = [event for event in program.events if event["event"] == "tool_finished"]
    assert [(event["status"], event["exit_code"]) for event in finished] == [("ok", 3), ("error", None)]


async def test_one_ctrl_c_stops_the_tool_keeps_its_output_and_leaves_nothing(model_server, script, command, start):
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
    assert nothing_left(command) == []
    assert program.errors == b""


async def test_a_terminals_ctrl_c_reaches_the_whole_group_and_still_only_cancels_the_turn(
    model_server, script, command, start
):
    model_server.answers = [script.calls("ipython", {"code": "print('up')\nimport time\ntime.sleep(1000)"})]
    program = await start()
    await program.wait_for("tool_output")
    os.killpg(program.process.pid, signal.SIGINT)
    assert await program.end() == 130
    finished = [event for event in program.events if event["event"] == "tool_finished"]
    assert finished[0]["status"] == "cancelled"
    assert finished[0]["content"].startswith("up\n")
    assert nothing_left(command) == []


async def test_ctrl_c_in_a_model_call_ends_it(model_server, script, command, start):
    stalling = script.says("")
    stalling.data, stalling.stall = script.events(script.delta(content="Hm"), end=False, done=False), True
    model_server.answers = [stalling]
    program = await start()
    await program.wait_for("text_delta")
    program.process.send_signal(signal.SIGINT)
    assert await program.end() == 130
    await model_server.client_left.wait()
    assert nothing_left(command) == []


async def test_a_second_ctrl_c_leaves_at_once_and_leaves_nothing(model_server, script, command, start):
    model_server.answers = [script.calls("ipython", {"code": STUBBORN})]
    program = await start()
    await program.wait_for("tool_output")
    program.process.send_signal(signal.SIGINT)
    await program.wait_for("cancelling")
    program.process.send_signal(signal.SIGINT)
    assert await program.end() == 130
    assert program.errors == b""
    assert "tool_finished" not in [event["event"] for event in program.events]
    assert program.events[-1]["stop"] == "cancelled"
    assert nothing_left(command) == []


async def test_sigterm_ends_everything(model_server, script, command, start):
    model_server.answers = [script.calls("bash", {"command": "echo up; sleep 1000"})]
    program = await start()
    await program.wait_for("tool_output")
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 143
    assert nothing_left(command) == []
    ledger = Path(program.events[0]["ledger"])
    (rollback,) = [event for event in read_history(ledger.parent).events if event["type"] == "prompt_rollback"]
    assert rollback["reason"] == "cancelled"  # and not that a workspace was lost, which nobody gave up


async def test_a_reader_that_leaves_ends_the_session(model_server, script, command, start):
    model_server.answers = [script.calls("bash", {"command": "while :; do echo again; sleep 0.05; done"})]
    program = await start()
    await program.wait_for("tool_output")
    await program.process.stdout.aclose()
    assert await program.process.wait() == 1
    assert program.errors == b""
    assert nothing_left(command) == []
