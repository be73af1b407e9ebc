"""The sessions on disk, as the command line shows them."""

import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
import trio

from rlm_harness.events import Usage
from rlm_harness.ledger import records
from rlm_harness.ledger.sessions import find_session, list_sessions, load_agents
from rlm_harness.ledger.writer import create_ledger
from rlm_harness.secrets import UserError
from rlm_harness.transcript import render_list, render_record, render_session


def system():
    return records.System(message={"role": "system", "content": "Work."})


def user(content):
    return records.User(turn=0, message={"role": "user", "content": content})


def assistant(content="", usage=(10, 2), turn=1, **call):
    message = {"role": "assistant", "content": content}
    if call:
        arguments = json.dumps(call["arguments"])
        message["tool_calls"] = [
            {"id": "c", "type": "function", "function": {"name": call["tool"], "arguments": arguments}}
        ]
    return records.Assistant(turn=turn, message=message, finish_reason="stop", usage=Usage(*usage), duration=0.5)


def result(content):
    message = {"role": "tool", "tool_call_id": "c", "content": content}
    return records.ToolResult(turn=1, tool="bash", duration=0.25, message=message)


DONE = records.Done(stop="answered", answer="", usage=Usage(), turns=1)


@asynccontextmanager
async def session(parent, *written, name=None, **meta):
    async with create_ledger(parent, name) as ledger:
        for record in written:
            await ledger.append(record)
        if meta:
            await ledger.write_meta(meta)
        yield ledger


async def test_a_pipe_for_a_ledger_keeps_nobody_waiting(tmp_path):
    async with session(tmp_path, system(), user("Work."), DONE, name="good"):
        pass
    for file in ("messages.jsonl", "meta.json"):
        (tmp_path / file).mkdir()
        os.mkfifo(tmp_path / file / file)
    with trio.fail_after(30):
        listed = await trio.to_thread.run_sync(list_sessions, tmp_path, abandon_on_cancel=True)
    assert "good" in [one.session for one in listed]


async def test_sessions_are_listed_with_what_there_is_to_know(tmp_path):
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    told = {"model": "m", "turns": 3, "usage": usage}
    async with session(
        tmp_path, system(), user("Mend it.\nAll of it."), status="answered", name="aa", **told
    ) as ledger:
        pass
    async with session(tmp_path, system(), user("Again."), assistant(), name="bb", status="running", model="m"):
        newer, older = list_sessions(tmp_path)
    assert (older.session, older.status, older.model, older.task) == ("aa", "answered", "m", "Mend it.")
    assert (older.turns, older.prompt_tokens, older.completion_tokens, older.agents) == (3, 100, 20, 1)
    assert older.size == sum(path.stat().st_size for path in ledger.directory.iterdir())
    assert older.started == json.loads(ledger.path.read_bytes().splitlines()[0])["timestamp"]
    assert (newer.session, newer.status, newer.turns, newer.prompt_tokens) == ("bb", "running", 1, 10)
    assert next(iter(list_sessions(tmp_path))).status == "interrupted"


async def test_of_a_task_with_pictures_the_list_has_the_words(tmp_path):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with session(tmp_path, system(), user([picture, {"type": "text", "text": "What is it?"}])):
        assert [listed.task for listed in list_sessions(tmp_path)] == ["What is it?"]


async def test_what_a_killed_harness_left_is_counted_from_its_ledgers(tmp_path):
    async with (
        session(tmp_path, system(), user("go"), assistant(), name="aa", status="running") as root,
        session(root.directory, system(), user("help"), assistant(usage=(5, 1)), DONE, name="sub-00000001"),
    ):
        pass
    (listed,) = list_sessions(tmp_path)
    assert (listed.status, listed.agents, listed.turns) == ("interrupted", 2, 2)
    assert (listed.prompt_tokens, listed.completion_tokens) == (15, 3)
    assert [agent.status for agent in load_agents(root.directory).descendants()] == ["interrupted", "answered"]


async def test_a_list_is_a_table_and_obeys_nobody(tmp_path):
    async with session(tmp_path, system(), user("\x1b[2Jclear\tit"), name="aa", status="answered", model="m\nn"):
        pass
    head, line = render_list(list_sessions(tmp_path)).splitlines()
    assert head.split() == ["SESSION", "STARTED", "STATUS", "MODEL", "TURNS", "TOKENS", "SIZE", "TASK"]
    assert line.endswith("clear it")
    assert "m n" in line
    assert "\x1b" not in line


async def test_a_session_is_found_by_the_beginning_of_its_id(tmp_path):
    for name in ("abc1", "abc2", "abc", "b"):
        async with session(tmp_path, name=name):
            pass
    assert find_session(tmp_path, "b").name == "b"
    assert find_session(tmp_path, "abc1").name == "abc1"
    assert find_session(tmp_path, "abc").name == "abc"
    with pytest.raises(UserError, match=r"'ab' fits 3 sessions: \w+, \w+, \w+"):
        find_session(tmp_path, "ab")
    for unknown in ("x", "", "../sessions", "*"):
        with pytest.raises(UserError, match=r"there is no session .* \(rlm-harness sessions lists them"):
            find_session(tmp_path, unknown)
    with pytest.raises(UserError, match="there is no session"):
        find_session(tmp_path / "nowhere", "x")


def shown(directory, *, full=False):
    return "".join(render_session(load_agents(directory), full=full))


async def test_a_session_is_shown_with_its_tree_and_what_each_agent_did(tmp_path):
    spawn = records.SubSpawn(child="sub-00000001", child_dir="sub-00000001", prompt="look", name="scout")
    call = assistant("I look.", tool="bash", arguments={"command": "ls\nls -l"})
    async with (
        session(
            tmp_path, system(), user("go"), call, result("a\nb"), spawn, DONE, status="answered", model="m"
        ) as root,
        session(root.directory, user("look"), assistant("Seen."), DONE, name="sub-00000001") as child,
        session(child.directory, user("closer"), name="sub-00000002"),
    ):
        pass
    text = shown(root.directory)
    head, tree, *agents = text.split("\n\n")
    assert head.startswith(f"session {root.session}: answered\nm\nstarted ")
    names = [line.partition(":")[0] for line in tree.splitlines()]
    assert names == ["root", "└─ sub-00000001 'scout'", "   └─ sub-00000002"]
    assert ": answered · 1 turn · 10 + 2 tokens · " in tree
    assert tree.splitlines()[2].split(" · ")[:2] == ["   └─ sub-00000002: interrupted", "0 turns"]
    for part in (
        "system (5 characters)",
        "user\n  go\n",
        "assistant (turn 1, 0.50 s, 10 + 2 tokens)\n  I look.\n  ▶ bash\n    │ ls\n    │ ls -l\n",
        "bash in 0.25 s, 3 B\n  a\n  b\n",
        "started sub-00000001 'scout'\n  look\n",
        "done: answered",
    ):
        assert part in agents[0]
    assert "assistant (turn 1, 0.50 s, 10 + 2 tokens)\n  Seen." in agents[1]


async def test_agents_are_in_the_order_in_which_they_were_started(tmp_path):
    spawns = [records.SubSpawn(child=name, child_dir=name, prompt="") for name in ("sub-2", "sub-1")]
    async with session(tmp_path, user("go"), *spawns) as root:
        for name in ("sub-0", "sub-1", "sub-2"):
            async with session(root.directory, name=name):
                pass
    assert [agent.id for agent in load_agents(root.directory).descendants()] == ["root", "sub-2", "sub-1", "sub-0"]


async def test_an_agent_that_has_not_begun_is_no_problem(tmp_path):
    async with session(tmp_path, user("go"), name="aa", status="answered") as root:
        (root.directory / "sub-00000001").mkdir()
    assert "└─ sub-00000001: not begun · 0 turns" in shown(root.directory)
    assert "(it has not begun)" in shown(root.directory)
    assert list_sessions(tmp_path)[0].status == "answered"
    ((_, child),) = [load_agents(root.directory).descendants()]
    assert child.problem == ""


async def test_long_texts_are_shortened_unless_all_is_asked_for(tmp_path):
    lines = "\n".join(f"line {number}" for number in range(100))
    async with session(tmp_path, user(lines), result("x" * 100_000)) as ledger:
        pass
    short = shown(ledger.directory)
    assert "line 23\n  [76 more lines: --full shows them]" in short
    assert "[92000 more characters: --full shows them]" in short
    full = shown(ledger.directory, full=True)
    assert "line 99" in full
    assert "x" * 100_000 in full


async def test_nothing_in_a_transcript_reaches_the_terminal(tmp_path):
    async with session(tmp_path, user("\x1b]0;title\x07\x1b[31mred\r"), name="aa", model="\x1bc", status="x") as ledger:
        pass
    assert not set(shown(ledger.directory)) & set("\x1b\x07\r")


def every_record():
    message = {"role": "user", "content": "text"}
    yield from (system(), user("hi"), assistant(), result("out"), DONE)
    yield records.ParentMessage(message=message, provenance={}, event_ids=["e"])
    yield records.SupervisorNotification(message=message, provenance={})
    yield records.KernelRecovery(message=message, provenance={})
    yield records.ContextMessage(message=message, source_message_index=1)
    yield records.PromptRollback(prompt_id="p", start_turn=0, attempted_turns=1, reason="error")
    yield records.ContextWindow(reason="rollback", message_indices=[], window=2)
    yield records.DiscardedAssistant(turn=1, message=message, finish_reason="length", usage=Usage(), duration=0.0)
    yield records.Compaction(
        reason="length",
        turn=1,
        summary="in short",
        summary_chars=8,
        dropped_chars=1,
        turns_since_last=1,
        attempts=1,
        usage=Usage(),
        duration=0.0,
    )


@pytest.mark.parametrize("record", list(every_record()), ids=lambda record: type(record).__name__)
def test_every_record_can_be_shown(record):
    for full in (False, True):
        assert render_record(msgspec.to_builtins(record), full=full)


def test_a_record_of_a_newer_harness_is_shown_by_its_name():
    assert render_record({"type": "something_new", "value": 1}, full=False) == "something new"


class Command:
    """`rlm-harness` with its sessions below `home`."""

    def __init__(self, home):
        self.home = home

    async def __call__(self, *arguments):
        return await trio.run_process(
            [sys.executable, "-m", "rlm_harness", *arguments],
            env=os.environ | {"RLM_HOME": str(self.home)},
            check=False,
            capture_stdout=True,
            capture_stderr=True,
        )


@pytest.fixture
def harness(tmp_path):
    return Command(tmp_path)


async def test_without_sessions_the_list_says_where_it_looked(harness, tmp_path):
    done = await harness("sessions")
    assert (done.returncode, done.stdout.decode()) == (0, f"no sessions in {tmp_path}/sessions\n")
    assert (await harness("sessions", "--json")).stdout == b""


async def test_sessions_and_their_records_can_be_had_as_json(harness, tmp_path):
    async with session(tmp_path / "sessions", system(), user("go"), name="aa", status="answered", model="m"):
        pass
    listed = json.loads((await harness("sessions", "--json")).stdout)
    assert (listed["session"], listed["status"], listed["task"]) == ("aa", "answered", "go")
    done = await harness("show", "a", "--json")
    (agent,) = json.loads(done.stdout)["agents"]
    assert [record["type"] for record in agent["records"]] == ["context_window", "system", "user"]
    assert (agent["id"], agent["parent"], agent["torn"], done.returncode) == ("root", None, 0, 0)


async def test_unknown_and_ambiguous_sessions_are_the_users_mistake(harness, tmp_path):
    for name in ("ab1", "ab2"):
        async with session(tmp_path / "sessions", name=name):
            pass
    for asked, problem in (("x", "there is no session 'x'"), ("ab", "'ab' fits 2 sessions: ")):
        done = await harness("show", asked)
        assert done.returncode == 2
        assert done.stderr.decode().startswith(f"rlm-harness: {problem}")
        assert done.stdout == b""


async def test_a_torn_session_is_shown_as_far_as_it_goes_and_says_so(harness, tmp_path):
    async with session(tmp_path / "sessions", user("go"), name="aa") as ledger:
        pass
    with ledger.path.open("ab") as file:
        file.write(b'{"type":"assist')
    done = await harness("show", "aa")
    assert done.returncode == 0
    assert "user\n  go\n! 15 bytes of an unfinished record at the end" in done.stdout.decode()


async def test_a_damaged_session_is_listed_and_says_where_it_is_damaged(harness, tmp_path):
    async with (
        session(tmp_path / "sessions", user("go"), name="aa") as ledger,
        session(ledger.directory, user("help"), name="sub-00000001"),
    ):
        pass
    with ledger.path.open("ab") as file:
        file.write(b"{}\n")
    done = await harness("show", "aa")
    assert done.returncode == 1
    assert f"! line 3 of {ledger.path} is damaged: " in done.stdout.decode()
    assert "user\n  help" in done.stdout.decode()
    assert b" damaged " in (await harness("sessions")).stdout


async def test_of_a_session_that_is_damaged_in_the_middle_all_else_is_shown_but_it_is_not_resumed(harness, tmp_path):
    async with session(tmp_path / "sessions", user("go"), assistant("first"), assistant("last"), name="aa") as ledger:
        pass
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join([*lines[:2], lines[2][:20] + b"\n", *lines[3:]]))
    before = ledger.path.read_bytes()
    done = await harness("show", "aa")
    shown = done.stdout.decode()
    assert done.returncode == 1
    assert "user\n  go\n! line 3 of " in shown
    assert f"! line 3 of {ledger.path} is damaged: " in shown
    assert "  last\n" in shown
    assert "first" not in shown
    told = json.loads((await harness("show", "aa", "--json")).stdout)["agents"][0]
    assert [record["type"] for record in told["records"]] == ["context_window", "user", "assistant"]
    assert [(gap["first"], gap["last"], gap["place"]) for gap in told["gaps"]] == [(3, 3, 2)]
    assert b" damaged " in (await harness("sessions")).stdout
    refused = await harness("resume", "aa", "--model", "m", "--base-url", "http://127.0.0.1:9")
    assert refused.returncode == 2
    assert f"cannot be resumed: line 3 of {ledger.path} is damaged: " in refused.stderr.decode()
    assert refused.stderr.count(b"\n") == 1
    assert ledger.path.read_bytes() == before


async def test_a_reader_that_has_seen_enough_gets_no_complaints(harness, tmp_path):
    async with session(tmp_path / "sessions", *[user("x" * 10_000)] * 50, name="aa"):
        pass
    for arguments in (["show", "aa", "--full"], ["sessions"]):
        ours, theirs = os.pipe()
        os.close(ours)
        try:
            done = await trio.run_process(
                [sys.executable, "-m", "rlm_harness", *arguments],
                env=os.environ | {"RLM_HOME": str(tmp_path)},
                check=False,
                stdout=theirs,
                capture_stderr=True,
            )
        finally:
            os.close(theirs)
        assert (done.returncode, done.stderr) == (1, b"")


async def test_a_session_that_runs_is_shown_so_and_one_that_was_killed_too(model_server, script, command):
    model_server.answers = [script.says("", finish_reason="stop")]
    model_server.answers[0].data, model_server.answers[0].stall = script.events(end=False, done=False), True
    harness = Command(command.place / "home")
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                command.arguments("--json"),
                env=command.environment(),
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        seen = b""
        while b"turn_started" not in seen:
            seen += await process.stdout.receive_some()
        assert b" running " in (await harness("sessions")).stdout
        process.send_signal(signal.SIGKILL)
    listed = json.loads((await harness("sessions", "--json")).stdout)
    assert (listed["status"], listed["task"], listed["model"]) == ("interrupted", "go", "m")
