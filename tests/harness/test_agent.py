"""The turn loop, with scripted models, a real worker and a real ledger."""

import msgspec
import pytest
import trio

from rlm_harness.agent import Agent
from rlm_harness.events import (
    AssistantReplied,
    Nudged,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    TurnStarted,
)
from rlm_harness.ledger import records
from rlm_harness.ledger.writer import create_ledger
from rlm_harness.model.interface import ModelError, Reply, ToolCall
from rlm_harness.model.scripted import Line, ScriptedModel
from rlm_harness.prompts import Surroundings
from rlm_harness.workspace import Workspace, local_worker_url
from rlm_wire.errors import SessionLost

SURROUNDINGS = Surroundings("/w", "linux", "3.11")


class Replies:
    """A model that gives these replies and remembers what it was shown."""

    name = "replies"

    def __init__(self, *replies):
        self.replies = list(replies)
        self.shown = []

    async def reply(self, messages, tools, emit):
        await trio.lowlevel.checkpoint()
        self.shown.append([dict(message) for message in messages])
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def calls(*pairs):
    return Reply("", [ToolCall(f"c{n}", name, arguments) for n, (name, arguments) in enumerate(pairs)], "tool_calls")


@pytest.fixture
async def tools(tmp_path, worker_url):
    (tmp_path / "w").mkdir()
    async with (
        Workspace.connect(worker_url, cwd=str(tmp_path / "w")) as workspace,
        workspace.agent() as tools,
    ):
        yield tools


@pytest.fixture
async def ledger(tmp_path):
    async with create_ledger(tmp_path / "sessions") as ledger:
        yield ledger


def read(ledger):
    decoder = msgspec.json.Decoder(records.Record)
    return [decoder.decode(line) for line in ledger.path.read_bytes().splitlines()]


def types(ledger):
    return [type(record).__name__ for record in read(ledger)]


def context_on_disk(ledger):
    """The messages of the last window, as a reader of the file sees them."""
    messages, context = {}, []
    for record in read(ledger):
        if isinstance(record, records.ContextWindow):
            context = list(record.message_indices)
        elif hasattr(record, "message"):
            messages[record.message_index] = record.message
            if record.window is not None:
                context.append(record.message_index)
    return [messages[index] for index in context]


async def test_a_prompt_runs_from_the_task_to_the_answer(tools, ledger, events):
    script = [Line("Look.", "bash", {"command": "echo hi"}), Line("It says hi.", expects="hi")]
    agent = Agent(ScriptedModel(script), tools, ledger, events.emit, surroundings=SURROUNDINGS)
    outcome = await agent.prompt("What does it say?")
    assert (outcome.stop, outcome.answer, outcome.turns) == ("answered", "It says hi.", 2)
    assert types(ledger) == ["ContextWindow", "System", "User", "Assistant", "ToolResult", "Assistant", "Done"]
    order = [
        type(event)
        for event in events.seen
        if isinstance(event, TurnStarted | AssistantReplied | ToolStarted | ToolOutput | ToolFinished)
    ]
    assert order == [
        TurnStarted,
        AssistantReplied,
        ToolStarted,
        ToolOutput,
        ToolFinished,
        TurnStarted,
        AssistantReplied,
    ]
    assert events.of(ToolFinished)[0].content == "hi\n"


async def test_the_model_sees_what_the_ledger_holds(tools, ledger, events):
    model = Replies(
        calls(("bash", '{"command": "echo hi; exit 3"}')), calls(("ipython", '{"code": "6 * 7"}')), Reply("42")
    )
    agent = Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS)
    await agent.prompt("go")
    contents = [(message["role"], message["content"]) for message in model.shown[2]]
    assert contents[1:] == [
        ("user", "go"),
        ("assistant", ""),
        ("tool", "hi\n[exit code 3]"),
        ("assistant", ""),
        ("tool", "42"),
    ]
    assert context_on_disk(ledger)[:-1] == model.shown[2]


async def test_long_output_is_shown_short_and_kept_whole(tools, ledger, events):
    model = Replies(calls(("bash", '{"command": "yes line | head -n 30000"}')), Reply("ok"))
    agent = Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS)
    await agent.prompt("go")
    shown = model.shown[1][-1]["content"]
    assert "about 37500 tokens" in shown
    assert "Total output lines: 30001" in shown
    assert len(shown) < 20_200
    whole, short = read(ledger)[4:6]
    assert whole.message["content"] == "line\n" * 30_000
    assert (whole.window, short.source_message_index, short.window) == (None, whole.message_index, 0)
    assert context_on_disk(ledger)[:-1] == model.shown[1]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (
            calls(("bash", '{"command": "touch ran"}'), ("bash", '{"command": "touch ran"}')),
            "only one tool call per turn",
        ),
        (calls(("shell", "{}")), "unknown tool 'shell'"),
        (calls(("bash", "{")), "not JSON"),
    ],
)
async def test_calls_that_cannot_be_run_are_each_answered(tools, ledger, events, tmp_path, reply, error):
    model = Replies(reply, Reply("sorry"))
    agent = Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS)
    await agent.prompt("go")
    answers = [message for message in model.shown[1] if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in answers] == [call.id for call in reply.tool_calls]
    assert all(error in message["content"] for message in answers)
    assert not (tmp_path / "w" / "ran").exists()


async def test_a_failed_edit_is_told_to_the_model_and_the_turn_goes_on(tools, ledger, events):
    model = Replies(calls(("edit", '{"path": "none", "old_str": "a", "new_str": "b"}')), Reply("no such file"))
    outcome = await Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS).prompt("go")
    assert outcome.stop == "answered"
    assert model.shown[1][-1]["content"].startswith("Error: ")
    assert events.of(ToolFinished)[0].status == "error"


async def test_empty_and_plan_like_replies_are_nudged_in_wrapped_messages(tools, ledger, events):
    model = Replies(Reply(""), Reply("Let me see."), Reply("Done."))
    await Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS).prompt("go")
    assert [event.kind for event in events.of(Nudged)] == ["empty_reply", "plan_reply"]
    assert types(ledger)[3:7] == ["Assistant", "EmptyReplyNudge", "Assistant", "PlanReplyNudge"]
    assert model.shown[1][-1]["content"].startswith('<runtime_event kind="nudge" reason="empty_reply">')


async def test_the_last_turn_is_the_last(tools, ledger, events):
    model = Replies(*[calls(("bash", '{"command": "true"}'))] * 3)
    agent = Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS, max_turns=2)
    outcome = await agent.prompt("go")
    assert (outcome.stop, outcome.turns, len(model.shown)) == ("max_turns", 2, 2)


async def test_a_dead_kernel_is_told_by_a_message_of_its_own(tools, ledger, events):
    model = Replies(calls(("ipython", '{"code": "import os; os._exit(3)"}')), Reply("I see"))
    await Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS).prompt("go")
    assert "KernelRecovery" in types(ledger)
    assert model.shown[1][-1]["content"].startswith('<runtime_event kind="recovery">')


async def test_a_cancelled_prompt_stops_its_tool_keeps_what_it_had_and_is_rolled_back(tools, ledger, events):
    model = Replies(calls(("bash", '{"command": "echo up; sleep 1000.25"}')), Reply("hello again"))
    agent = Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.prompt, "go")
        await events.wait_for(ToolOutput)
        nursery.cancel_scope.cancel()
    assert (await tools.bash("pgrep -f 'sleep 1000.2[5]'")).exit_code == 1
    finished = events.of(ToolFinished)[0]
    assert (finished.status, finished.content) == ("cancelled", "up\n[the command was cancelled and stopped]")
    assert types(ledger)[4:] == ["ToolResult", "PromptRollback", "ContextWindow"]
    assert read(ledger)[5].reason == "cancelled"

    await agent.prompt("again")
    assert [message["content"] for message in model.shown[1][1:]] == ["again"]
    assert context_on_disk(ledger)[:-1] == model.shown[1]


async def test_a_model_that_fails_rolls_the_prompt_back(tools, ledger, events):
    model = Replies(calls(("bash", '{"command": "touch kept"}')), ModelError("gone"), Reply("here"))
    agent = Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS)
    with pytest.raises(ModelError, match="gone"):
        await agent.prompt("go")
    rollback = read(ledger)[-2]
    assert (rollback.reason, rollback.attempted_turns) == ("error", 2)
    assert (await tools.bash("ls kept")).exit_code == 0
    assert (await agent.prompt("again")).answer == "here"
    assert agent.turns == 3


async def test_a_worker_that_dies_in_a_call_ends_the_prompt_and_loses_no_record(ledger, events):
    async with Workspace.connect(local_worker_url()) as workspace, workspace.agent() as tools:
        model = Replies(calls(("bash", f'{{"command": "kill -9 {workspace.info.pid}; sleep 1000"}}')))
        agent = Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS)
        with pytest.raises(SessionLost):
            await agent.prompt("go")
    assert types(ledger)[-3:] == ["Assistant", "PromptRollback", "ContextWindow"]
