"""Conversations that outgrow the window of their model, which here really has one."""

import msgspec
import pytest
import trio

from rlm_harness.agent import Agent
from rlm_harness.compaction import MAX_ATTEMPTS, RESERVE, CompactionFailed, CompactionPolicy, WindowedModel
from rlm_harness.conversation import Conversation
from rlm_harness.events import AssistantReplied, Compacted, Compacting, Retrying, TextDelta, Usage
from rlm_harness.ledger import records
from rlm_harness.ledger.writer import create_ledger
from rlm_harness.model.interface import ContextOverflow, ModelError, Reply, ToolCall
from rlm_harness.prompts import SUMMARIZE, Surroundings
from rlm_harness.tools import TOOL_SCHEMAS
from rlm_harness.workspace import Workspace

TOOLS = sum(len(msgspec.json.encode(schema)) for schema in TOOL_SCHEMAS) // 4
"""Tokens of the schemas that are part of every request."""


class SmallModel:
    """A model with a window of `window` tokens beside the tools, four bytes each.

    It refuses what is longer, and its replies end where the window does. `replies` are what it says, `summaries` what
    it says when it is asked for one.
    """

    name = "small"

    def __init__(self, window, replies=(), summaries=()):
        self.window = TOOLS + window
        self.replies = list(replies)
        self.summaries = list(summaries)
        self.shown = []
        self.asked_for_summaries = []

    async def reply(self, messages, tools, emit, tool_choice="auto"):
        await trio.lowlevel.checkpoint()
        messages = [dict(message) for message in messages]
        summary = messages[-1]["content"] == SUMMARIZE
        assert (tool_choice == "none") == summary
        assert tools == TOOL_SCHEMAS
        (self.asked_for_summaries if summary else self.shown).append(messages)
        prompt = TOOLS + len(msgspec.json.encode(messages)) // 4
        if prompt > self.window:
            raise ContextOverflow("too long")
        replies = self.summaries if summary else self.replies
        reply = replies.pop(0) if replies else Reply("So far, so good." if summary else "Done.")
        if isinstance(reply, Exception):
            raise reply
        await emit(TextDelta(reply.text))
        tokens = len(msgspec.json.encode(reply.message)) // 4
        if prompt + tokens > self.window:
            reply = Reply(reply.text[: 4 * (self.window - prompt)], finish_reason="length")
            tokens = self.window - prompt
        return msgspec.structs.replace(reply, usage=Usage(prompt, tokens))


class Loop:
    """The turn loop without tools: each turn is one reply and `size` bytes of result."""

    def __init__(self, model, ledger, events, policy=None):
        self.conversation = Conversation(ledger)
        self.spent = Usage()
        self.model = WindowedModel(
            model, TOOL_SCHEMAS, self.conversation, events.emit, self._spend, policy or CompactionPolicy()
        )
        self.turn = 0

    def _spend(self, usage):
        self.spent += usage

    async def begin(self, task="the task"):
        await self.conversation.add(records.System(message={"role": "system", "content": "Work."}))
        await self.ask(task)

    async def ask(self, text):
        await self.conversation.add(records.User(turn=self.turn, message={"role": "user", "content": text}))

    async def step(self, size):
        self.turn += 1
        reply = await self.model.reply(self.turn)
        usage, finish = reply.usage, reply.finish_reason
        await self.conversation.add(
            records.Assistant(turn=self.turn, message=reply.message, finish_reason=finish, usage=usage, duration=0.0)
        )
        message = {"role": "tool", "tool_call_id": "c", "content": "r" * size}
        await self.conversation.add(records.ToolResult(turn=self.turn, tool="bash", duration=0.0, message=message))
        return reply


def call():
    return Reply("", [ToolCall("c", "bash", "{}")], "tool_calls")


def window_of(tokens):
    async def window():
        await trio.lowlevel.checkpoint()
        return tokens

    return window


@pytest.fixture
async def ledger(tmp_path):
    async with create_ledger(tmp_path / "sessions") as ledger:
        yield ledger


def read(ledger, kind=None):
    decoder = msgspec.json.Decoder(records.Record)
    written = [decoder.decode(line) for line in ledger.path.read_bytes().splitlines()]
    return [record for record in written if kind is None or isinstance(record, kind)]


async def test_before_the_window_is_full_a_summary_takes_the_place_of_the_conversation(ledger, events):
    model = SmallModel(100_000, [call()] * 4)
    loop = Loop(model, ledger, events, CompactionPolicy(summarize_at=TOOLS + 2000))
    await loop.begin()
    for _ in range(3):
        await loop.step(1000)
    assert events.of(Compacting) == []
    await loop.step(10_000)
    before = list(loop.conversation.messages)
    await loop.step(10)
    assert [event.reason for event in events.of(Compacting)] == ["threshold"]
    assert model.asked_for_summaries == [[*before, {"role": "user", "content": SUMMARIZE}]]
    system, summary = model.shown[-1]
    assert system == before[0]
    assert summary["role"] == "user"
    assert summary["content"].startswith('<runtime_event kind="compaction">')
    for part in ("So far, so good.", "rlm.history()", "h.windows[0].messages", "h.user_messages()"):
        assert part in summary["content"]
    assert "does not cover" not in summary["content"]


async def test_a_compaction_is_in_the_ledger_and_the_closed_window_stays_as_it_was(ledger, events):
    loop = Loop(SmallModel(100_000, [call()] * 2), ledger, events, CompactionPolicy(summarize_at=1))
    await loop.begin()
    await loop.step(100)
    closed = list(ledger.context)
    await loop.step(100)
    written = read(ledger)
    summary, compaction, window = written[5:8]
    assert (type(summary), summary.window, summary.source_message_index) == (records.ContextMessage, None, None)
    assert isinstance(compaction, records.Compaction)
    assert (compaction.reason, compaction.turn, compaction.summary) == ("threshold", 2, "So far, so good.")
    assert (compaction.window, compaction.summary_message_index) == (1, summary.message_index)
    assert (compaction.summary_chars, compaction.turns_since_last, compaction.attempts) == (16, 1, 1)
    assert compaction.dropped_chars == len("the task") + len("{}") + 100
    assert compaction.usage.completion_tokens > 0
    assert (window.reason, window.window, window.message_indices) == ("compaction", 1, [0, summary.message_index])
    of_first = [record.message_index for record in written if record.window == 0 and hasattr(record, "message")]
    assert of_first == closed
    assert [record.window for record in written[8:]] == [1, 1]


async def test_tokens_of_summaries_are_spent_and_their_text_is_no_part_of_the_reply(ledger, events):
    model = SmallModel(100_000, [call()] * 2, [Reply(""), Reply("In short.")])
    loop = Loop(model, ledger, events, CompactionPolicy(summarize_at=1))
    await loop.begin()
    first = await loop.step(100)
    second = await loop.step(100)
    (done,) = events.of(Compacted)
    assert done.attempts == 2
    assert loop.spent == first.usage + done.usage + second.usage
    assert [event.text for event in events.of(TextDelta)] == ["", ""]


async def test_the_window_that_the_endpoint_tells_is_filled_but_for_room_to_reply(ledger, events):
    model = SmallModel(100_000, [call()] * 3)
    loop = Loop(model, ledger, events, CompactionPolicy(window=window_of(100_000)))
    await loop.begin()
    await loop.step(4 * (100_000 - RESERVE - TOOLS) - 40_000)
    await loop.step(30_000)
    assert events.of(Compacting) == []
    await loop.step(10_000)
    await loop.step(10)
    assert [event.reason for event in events.of(Compacting)] == ["threshold"]


async def test_a_small_window_is_filled_by_half(ledger, events):
    loop = Loop(SmallModel(8000, [call()] * 3), ledger, events, CompactionPolicy(window=window_of(TOOLS + 8000)))
    await loop.begin()
    await loop.step(10_000)
    await loop.step(8_000)
    assert events.of(Compacting) == []
    await loop.step(10)
    assert len(events.of(Compacting)) == 1


async def test_a_refused_conversation_goes_on_from_what_is_known_to_fit(ledger, events):
    model = SmallModel(1000, [call()] * 2)
    loop = Loop(model, ledger, events)
    await loop.begin()
    await loop.step(2000)
    await loop.step(3000)
    messages = list(loop.conversation.messages)
    await loop.step(10)
    assert [event.reason for event in events.of(Compacting)] == ["overflow"]
    assert model.asked_for_summaries == [[*messages[:4], {"role": "user", "content": SUMMARIZE}]]
    compaction = read(ledger, records.Compaction)[0]
    assert (compaction.uncovered, compaction.attempts) == (2, 1)
    assert "does not cover the last 2 messages" in model.shown[-1][1]["content"]
    assert "h.windows[0].messages[-2:]" in model.shown[-1][1]["content"]


async def test_what_does_not_fit_even_for_a_summary_is_left_out_step_by_step(ledger, events):
    model = SmallModel(1000, [call()] * 3)
    loop = Loop(model, ledger, events, CompactionPolicy(summarize_at=TOOLS + 1100))
    await loop.begin()
    await loop.step(1200)
    await loop.step(2000)
    await loop.step(3000)
    await loop.step(10)
    # All of it, then what the last reply answered: that fits, but the request for a summary on top of it does not.
    assert [len(asked) - 1 for asked in model.asked_for_summaries] == [8, 6, 4]
    assert read(ledger, records.Compaction)[0].uncovered == 4


async def test_what_was_asked_last_is_kept_word_for_word_if_the_summary_does_not_cover_it(ledger, events):
    model = SmallModel(1000, [Reply("It is done.")])
    loop = Loop(model, ledger, events)
    await loop.begin()
    await loop.step(3000)
    await loop.ask("And now? " * 200)
    await loop.step(10)
    assert [message["role"] for message in model.shown[-1]] == ["system", "user", "user"]
    assert model.shown[-1][2]["content"] == "And now? " * 200
    assert read(ledger, records.ContextWindow)[-1].message_indices == [0, 5, 4]
    assert loop.conversation.ledger.context[:3] == [0, 5, 4]


async def test_a_conversation_that_cannot_be_shortened_is_the_users_to_shorten(ledger, events):
    loop = Loop(SmallModel(1000), ledger, events)
    await loop.begin("x" * 10_000)
    with pytest.raises(ContextOverflow):
        await loop.step(10)
    assert events.of(Compacting) == []


async def test_how_often_room_is_made_can_be_said(ledger, events):
    loop = Loop(SmallModel(1000, [call()] * 9), ledger, events, CompactionPolicy(summarize_at=1, most=1))
    await loop.begin()
    for _ in range(4):
        await loop.step(10)
    assert len(read(ledger, records.Compaction)) == 1
    await loop.step(5000)
    with pytest.raises(ContextOverflow):
        await loop.step(10)


async def test_how_often_a_summary_is_tried_can_be_said(ledger, events):
    model = SmallModel(1000, [call()] * 2, [Reply("")] * 9)
    loop = Loop(model, ledger, events, CompactionPolicy(summarize_at=1, attempts=2))
    await loop.begin()
    await loop.step(10)
    with pytest.raises(CompactionFailed):
        await loop.step(10)
    assert len(model.asked_for_summaries) == 2


async def test_a_reply_cut_off_by_the_window_is_put_aside_and_asked_for_again(ledger, events):
    model = SmallModel(40_000, [call(), Reply("long " * 40_000), Reply("short")])
    loop = Loop(model, ledger, events, CompactionPolicy(window=window_of(TOOLS + 40_000)))
    await loop.begin()
    await loop.step(20_000)
    reply = await loop.step(10)
    assert (reply.text, reply.finish_reason) == ("short", "stop")
    assert [event.reason for event in events.of(Compacting)] == ["length"]
    (discarded,) = read(ledger, records.DiscardedAssistant)
    assert (discarded.window, discarded.turn, discarded.finish_reason) == (None, 2, "length")
    assert discarded.message["content"].startswith("long long")
    assert not any("long long" in str(message["content"]) for message in loop.conversation.messages)


async def test_a_reply_cut_off_far_from_the_end_of_the_window_has_a_limit_of_its_own(ledger, events):
    cut = Reply("long", finish_reason="length")
    loop = Loop(SmallModel(100_000, [call(), cut]), ledger, events, CompactionPolicy(window=window_of(100_000)))
    await loop.begin()
    await loop.step(100)
    assert (await loop.step(100)).finish_reason == "length"
    assert events.of(Compacting) == []
    assert read(ledger, records.DiscardedAssistant) == []


async def test_a_reply_that_is_cut_off_again_and_again_is_taken_as_it_is(ledger, events):
    cut = Reply("long", finish_reason="length")
    loop = Loop(SmallModel(100_000, [call(), cut, cut]), ledger, events)
    await loop.begin()
    await loop.step(100)
    assert (await loop.step(100)).finish_reason == "length"
    assert len(events.of(Compacting)) == 1


@pytest.mark.parametrize("useless", [Reply(" \n"), call()], ids=["empty", "tool call"])
async def test_useless_summaries_are_asked_for_again_but_not_for_ever(ledger, events, useless):
    model = SmallModel(100_000, [call()], [useless] * MAX_ATTEMPTS)
    loop = Loop(model, ledger, events, CompactionPolicy(summarize_at=1))
    await loop.begin()
    await loop.step(100)
    with pytest.raises(CompactionFailed):
        await loop.step(100)
    assert len(model.asked_for_summaries) == MAX_ATTEMPTS
    assert read(ledger, records.ContextWindow)[1:] == []


async def test_a_summary_that_is_cut_off_is_asked_for_with_more_room(ledger, events):
    model = SmallModel(1000, [call()] * 2, [Reply("long " * 400), Reply("short")])
    loop = Loop(model, ledger, events, CompactionPolicy(summarize_at=TOOLS + 400))
    await loop.begin()
    await loop.step(1700)
    await loop.step(10)
    assert [len(asked) - 1 for asked in model.asked_for_summaries] == [4, 2]
    assert events.of(Compacted)[0].summary == "short"


async def test_retries_of_a_summary_are_told(ledger, events):
    class Flaky(SmallModel):
        async def reply(self, messages, tools, emit, tool_choice="auto"):
            if tool_choice == "none":
                await emit(Retrying("HTTP 500", 1.0, 2))
            return await super().reply(messages, tools, emit, tool_choice)

    loop = Loop(Flaky(100_000, [call()] * 2), ledger, events, CompactionPolicy(summarize_at=1))
    await loop.begin()
    await loop.step(100)
    await loop.step(100)
    assert len(events.of(Retrying)) == 1


SURROUNDINGS = Surroundings("/w", "linux", "3.11")


@pytest.fixture
async def tools(tmp_path, ledger, worker_url):
    async with (
        Workspace.connect(worker_url, cwd=str(tmp_path)) as workspace,
        workspace.agent(ledger=ledger) as tools,
    ):
        yield tools


def cell(code):
    return Reply("", [ToolCall("c", "ipython", msgspec.json.encode({"code": code}).decode())], "tool_calls")


async def test_after_a_compaction_the_kernel_is_as_it_was_and_the_history_has_what_is_gone(tools, ledger, events):
    look = (
        "h = await rlm.history()\n"
        "print(secret, len(h.windows), h.windows[0].messages[1]['content'], h.user_messages()[0]['message']['content'])"
    )
    model = SmallModel(100_000, [cell("secret = 6 * 7; print('x' * 4000)"), cell(look), Reply("42")])
    policy = CompactionPolicy(summarize_at=TOOLS + 1000)
    agent = Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS, compaction=policy)
    outcome = await agent.prompt("the task")
    assert (outcome.stop, outcome.answer, outcome.turns) == ("answered", "42", 3)
    assert model.shown[-1][-1]["content"] == "42 2 the task the task\n"
    (compacted,) = events.of(Compacted)
    replies = [event.usage for event in events.of(AssistantReplied)]
    assert outcome.usage == agent.usage == sum(replies, compacted.usage)


async def test_a_run_without_a_summary_ends_in_order(tools, ledger, events):
    model = SmallModel(100_000, [cell("print('x' * 4000)")], [Reply("")] * MAX_ATTEMPTS)
    policy = CompactionPolicy(summarize_at=100)
    agent = Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS, compaction=policy)
    outcome = await agent.prompt("the task")
    assert outcome.stop == "compaction_failed"
    done = read(ledger)[-1]
    assert (type(done), done.stop) == (records.Done, "compaction_failed")


async def test_a_prompt_that_fails_takes_its_compaction_back(tools, ledger, events):
    model = SmallModel(100_000, [Reply("hello"), cell("print('x' * 4000)"), ModelError("gone"), Reply("here")])
    policy = CompactionPolicy(summarize_at=TOOLS + 1000)
    agent = Agent(model, tools, ledger, events.emit, surroundings=SURROUNDINGS, compaction=policy)
    await agent.prompt("first")
    with pytest.raises(ModelError, match="gone"):
        await agent.prompt("second")
    assert len(events.of(Compacted)) == 1
    await agent.prompt("third")
    assert [message["content"] for message in model.shown[-1][1:]] == ["first", "hello", "third"]
    windows = read(ledger, records.ContextWindow)
    assert [(window.window, window.reason) for window in windows] == [
        (0, "start"),
        (1, "compaction"),
        (2, "rollback"),
    ]
    assert windows[2].message_indices == [0, 1, 2]
    assert len(events.of(Compacted)) == 1  # what was known of the window was put back as well


async def test_a_session_is_told_when_to_summarise_and_shows_it(model_server, script, command):
    model_server.answers = [
        script.calls("bash", {"command": "echo made"}),
        script.says("I made it.", usage=(900, 100)),
        script.says("It is made."),
    ]
    done = await command.run("--summarize-at-tokens", "10")
    shown = done.stdout.decode()
    assert done.returncode == 0, shown
    first, summary, last = model_server.requests
    assert (summary["tool_choice"], summary["tools"]) == ("none", first["tools"])
    assert [message["role"] for message in last["messages"]] == ["system", "user"]
    for part in (
        "window fills up: asking the model for a summary",
        "  │ I made it.",
        "goes on from this summary",
        "answered",
    ):
        assert part in shown


async def test_a_session_without_a_summary_says_what_to_do(model_server, script, command):
    model_server.answers = [script.calls("bash", {"command": "echo made"})] + [script.says("")] * MAX_ATTEMPTS
    done = await command.run("--summarize-at-tokens", "10")
    assert done.returncode == 1
    assert b"use a model with a larger window" in done.stderr
    assert b"the conversation became too long" in done.stdout
