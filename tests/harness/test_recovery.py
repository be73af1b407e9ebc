"""Conversations taken up again from their ledgers, cut off where a killed harness may have left them."""

import itertools
import json
import shutil

import msgspec
import pytest

from rlm_harness.agent import Agent
from rlm_harness.compaction import CompactionPolicy
from rlm_harness.events import Usage
from rlm_harness.ledger import records
from rlm_harness.ledger.history import read_history
from rlm_harness.ledger.writer import create_ledger, reopen_ledger
from rlm_harness.model.interface import ModelError, Reply, ToolCall
from rlm_harness.prompts import Surroundings, runtime_event
from rlm_harness.recovery import recover
from rlm_harness.workspace import Workspace

SURROUNDINGS = Surroundings("/w", "linux", "3.11")
ANSWER = Reply("All is well.", usage=Usage(5, 1))


class Replies:
    name = "replies"

    def __init__(self, *replies):
        self.replies = list(replies)
        self.shown = []

    async def reply(self, messages, tools, emit, tool_choice="auto"):
        self.shown.append([dict(message) for message in messages])
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def bash(command):
    return Reply("", [ToolCall("c", "bash", json.dumps({"command": command}))], "tool_calls", Usage(10, 2))


def resumed():
    message = runtime_event("recovery", "You are back.")
    return records.Resumed(message=message, provenance={"kind": "recovery"}, workspace="new")


@pytest.fixture
async def tools(tmp_path, worker_url):
    (tmp_path / "w").mkdir()
    async with (
        Workspace.connect(worker_url, cwd=str(tmp_path / "w")) as workspace,
        workspace.agent() as tools,
    ):
        yield tools


def agent_of(model, tools, ledger, events, **settings):
    return Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS, **settings)


async def play(tools, ledger, events):
    """A session with all that can be in one: two prompts, one rolled back, long output, a nudge, compactions."""
    long = bash("yes line | head -n 5000")
    model = Replies(
        bash("echo one"),
        Reply("First answer.", usage=Usage(10, 2)),
        *[bash("echo lost"), ModelError("gone")],
        *[long, Reply("In short.", usage=Usage(20, 4)), Reply("", usage=Usage(3, 1)), bash("echo two"), ANSWER],
    )
    agent = agent_of(model, tools, ledger, events, compaction=CompactionPolicy(summarize_at=1000))
    await agent.prompt("first")
    with pytest.raises(ModelError):
        await agent.prompt("second")
    await agent.prompt("third")
    assert not model.replies
    return agent


def well_formed(messages):
    """Every reply with calls is followed by their results, and every result follows its reply."""
    open_calls = []
    for message in messages:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
        else:
            assert not open_calls, messages
            open_calls = [call["id"] for call in message.get("tool_calls", ())]
    assert not open_calls, messages
    return True


async def test_a_session_cut_off_at_any_record_goes_on(tools, tmp_path, events):
    async with create_ledger(tmp_path, "whole") as ledger:
        await play(tools, ledger, events)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    kinds = {json.loads(line)["type"] for line in lines}
    assert {"compaction", "prompt_rollback", "context_message", "empty_reply_nudge"} <= kinds
    for count in range(1, len(lines) + 1):
        copy = tmp_path / f"cut-{count}"
        copy.mkdir()
        (copy / "messages.jsonl").write_bytes(b"".join(lines[:count]) + b'{"torn')
        model = Replies(ANSWER)
        async with reopen_ledger(copy) as (ledger, history):
            agent = agent_of(model, tools, ledger, events)
            recovered = await agent.restore(history, resumed())
            if recovered.prompt is not None:
                outcome = await agent.resume(recovered.prompt, history)
            else:
                outcome = await agent.prompt("go on")
        assert outcome.stop == "answered"
        whole = read_history(copy)  # contiguous, and no closed window was touched
        assert whole.torn == 0
        assert (copy / "messages.jsonl").read_bytes().startswith(b"".join(lines[:count]))
        assert well_formed(whole.windows[-1].messages)
        assert all(map(well_formed, model.shown))
        assert recover(whole).prompt is None
        if model.shown:
            assert whole.windows[-1].messages[:-1] == model.shown[0]
        shutil.rmtree(copy)


async def test_turns_tokens_and_the_window_are_those_of_the_ledger(tools, tmp_path, events):
    async with create_ledger(tmp_path) as ledger:
        before = await play(tools, ledger, events)
    async with reopen_ledger(ledger.directory) as (ledger, history):
        recovered = recover(history)
        agent = agent_of(Replies(), tools, ledger, events)
        await agent.restore(history, resumed())
    assert (agent.turns, agent.usage) == (before.turns, before.usage)
    assert recovered.indices == history.windows[-1].message_indices
    assert (recovered.prompt, recovered.calls, recovered.undone) == (None, [], None)


async def write(ledger, *written):
    for record in written:
        await ledger.append(record)


def assistant(reply, turn=1):
    return records.Assistant(turn=turn, message=reply.message, finish_reason="stop", usage=reply.usage, duration=0.0)


def user(text, turn=0):
    return records.User(id=text, turn=turn, message={"role": "user", "content": text})


SYSTEM = {"role": "system", "content": "Work."}


async def test_a_call_without_a_result_has_an_unknown_outcome_and_the_model_is_told(tools, tmp_path, events):
    two = Reply("", [ToolCall(name, "bash", "{}") for name in ("a", "b")], "tool_calls")
    result = records.ToolResult(
        turn=1, tool="bash", duration=0.0, message={"role": "tool", "tool_call_id": "a", "content": "done"}
    )
    async with create_ledger(tmp_path) as ledger:
        await write(ledger, records.System(message=SYSTEM), user("go"), assistant(two), result)
    model = Replies(ANSWER)
    async with reopen_ledger(ledger.directory) as (ledger, history):
        agent = agent_of(model, tools, ledger, events)
        recovered = await agent.restore(history, resumed())
        assert [(call.id, call.result) for call in recovered.calls] == [("b", None)]
        outcome = await agent.resume(recovered.prompt, history)
    assert (outcome.stop, outcome.turns) == ("answered", 2)
    *_, first, unknown, told = model.shown[0]
    assert first["content"] == "done"
    assert (unknown["role"], unknown["tool_call_id"]) == ("tool", "b")
    assert unknown["content"].startswith("[outcome unknown: the harness was killed")
    assert "You are back." in told["content"]


async def test_a_result_that_was_not_shown_yet_is_shown(tools, tmp_path, events):
    async with create_ledger(tmp_path) as ledger:
        await write(ledger, records.System(message=SYSTEM), user("go"), assistant(bash("x")))
        message = {"role": "tool", "tool_call_id": "c", "content": "line\n" * 5000}
        await ledger.append(records.ToolResult(turn=1, tool="bash", duration=0.0, message=message), in_context=False)
    async with reopen_ledger(ledger.directory) as (ledger, history):
        await agent_of(Replies(), tools, ledger, events).restore(history, resumed())
    shown = read_history(ledger.directory).windows[-1].messages[3]
    assert shown["content"].startswith("[Shortened: this output is about 6250 tokens long]")


async def test_an_answer_whose_end_was_not_recorded_is_the_answer(tools, tmp_path, events):
    async with create_ledger(tmp_path) as ledger:
        await write(ledger, records.System(message=SYSTEM), user("go"), assistant(ANSWER))
    model = Replies()
    async with reopen_ledger(ledger.directory) as (ledger, history):
        agent = agent_of(model, tools, ledger, events)
        recovered = await agent.restore(history, resumed())
        outcome = await agent.resume(recovered.prompt, history)
    assert (outcome.stop, outcome.answer, outcome.turns, model.shown) == ("answered", "All is well.", 1, [])


async def test_a_resumed_prompt_that_fails_is_rolled_back_to_before_it_was_asked(tools, tmp_path, events):
    async with create_ledger(tmp_path) as ledger:
        done = records.Done(stop="answered", answer="", usage=Usage(), turns=1)
        await write(ledger, records.System(message=SYSTEM), user("first"), assistant(ANSWER), done)
        await write(ledger, user("second", turn=1), assistant(bash("x"), turn=2))
    model = Replies(ModelError("gone"), ANSWER)
    async with reopen_ledger(ledger.directory) as (ledger, history):
        agent = agent_of(model, tools, ledger, events)
        recovered = await agent.restore(history, resumed())
        with pytest.raises(ModelError):
            await agent.resume(recovered.prompt, history)
        await agent.prompt("third")
    assert [message["content"] for message in model.shown[1]] == ["Work.", "first", "All is well.", "third"]
    (rollback,) = read_history(ledger.directory).of("prompt_rollback")
    assert (rollback["prompt_id"], rollback["start_turn"], rollback["attempted_turns"]) == ("second", 1, 2)


async def test_a_session_may_be_killed_and_resumed_again_and_again(tools, tmp_path, events):
    async with create_ledger(tmp_path) as ledger:
        await write(ledger, records.System(message=SYSTEM), user("go"), assistant(bash("x")))
    for _ in range(3):
        async with reopen_ledger(ledger.directory) as (ledger, history):
            agent = agent_of(Replies(), tools, ledger, events)
            recovered = await agent.restore(history, resumed())
            assert recovered.prompt.id == "go"
    kinds = [record["type"] for record in read_history(ledger.directory).events]
    assert [kind for kind, _ in itertools.groupby(kinds[4:])] == ["unknown_outcome", "resumed"]


def test_a_ledger_without_anything_asked_has_nothing_open(tmp_path):
    empty = tmp_path / "messages.jsonl"
    empty.write_bytes(msgspec.json.encode(records.ContextWindow(reason="start", message_indices=[], window=0)) + b"\n")
    recovered = recover(read_history(tmp_path))
    assert (recovered.indices, recovered.turns, recovered.prompt, recovered.calls) == ([], 0, None, [])
