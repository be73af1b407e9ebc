"""One session by itself, in a process of the test's; what it is told to show goes where the test wants it to."""

import json

import pytest
import trio
import trio.testing
from harness.acp.client import contract

from rlm_harness.acp.contract import check_untrusted
from rlm_harness.acp.jsonrpc import RpcError
from rlm_harness.acp.opening import take_order
from rlm_harness.acp.session import LEAVE_GRACE, Session

SNAPSHOT = "ai.prime.rlm/session-v1"


class Screen:
    """Waits for ever, or raises `error`, when `stop` is in an update for that time.

    With `insists` it waits until the client `reads`, whoever cancels it, as a connection does within a message.
    """

    def __init__(self, stop, *, time=1, error=None, insists=False):
        self.stopped = trio.Event()
        self.reads = trio.Event()
        self._insists = insists
        self._stop = stop
        self._left = time
        self._error = error

    async def show(self, _, update):
        self._left -= self._stop in str(update)
        if self._left == 0 and not self.stopped.is_set():
            self.stopped.set()
            if self._error is not None:
                raise self._error
            with trio.CancelScope(shield=self._insists):
                await self.reads.wait()


@pytest.fixture
def opened(model_server, workdir, tmp_path, monkeypatch):
    monkeypatch.setenv("RLM_HOME", str(tmp_path / "home"))

    def session(screen, **changes):
        order = take_order(check_untrusted(contract(model_server.base_url, **changes))[0], str(workdir), [])
        return Session(order, screen.show)

    return session


async def failed(answer):
    try:
        await answer()
    except RpcError as error:
        return error.data["kind"], error.data["details"]


async def test_what_nobody_foresaw_ends_one_session_with_an_answer_to_each_prompt(opened, model_server, script, caplog):
    model_server.by_task = {
        "one": [script.says("One."), script.says("Two.")],
        "else": [script.says("Fine.")],
    }
    screen = Screen("Two", error=ZeroDivisionError("nobody foresaw this"))
    session, other = opened(screen), opened(screen)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            nursery.start_soon(other.run)
            first, *others = [session.prompt(text) for text in ("one", "two", "three")]
            assert (await first())["stopReason"] == "end_turn"
            expected = ("internal", "ZeroDivisionError: nobody foresaw this")
            assert [await failed(answer) for answer in others] == [expected] * 2
            assert await failed(session.prompt("four")) == expected
            assert (await other.prompt("else")())["stopReason"] == "end_turn"
            await session.close()()
            await other.close()()
    assert "has failed" in caplog.text


async def test_a_prompt_has_its_answer_also_if_closing_has_to_be_cut_off(opened, model_server, script):
    model_server.answers = [script.says("One.")]
    screen = Screen("One", insists=True)
    session = opened(screen)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            answer = session.prompt("one")
            await screen.stopped.wait()
            session.leave()
            await trio.sleep(2 * LEAVE_GRACE)  # so long the client does not read
            screen.reads.set()
            assert (await answer())["stopReason"] == "cancelled"
            closed = await session.close()()
    assert closed["_meta"][SNAPSHOT]["last_stop_reason"] == "cancelled"


async def test_what_stands_in_the_conversation_is_not_said_to_be_cancelled(opened, model_server, script):
    model_server.answers = [
        script.calls("bash", {"command": "true"}, text="I look."),
        script.says(""),  # no summary
        script.says("Fine."),
    ]
    screen = Screen("I look.", time=2)  # which is as the answer
    limits = {"summarize_at_tokens": 1, "max_compaction_attempts": 1, "max_compactions": 1}
    session = opened(screen, policy=limits)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            answer = session.prompt("one")
            await screen.stopped.wait()
            session.cancel()
            told = await answer()
            assert (told["stopReason"], told["_meta"][SNAPSHOT]["last_stop_reason"]) == (
                "end_turn",
                "compaction_failed",
            )
            assert (await session.prompt("two")())["stopReason"] == "end_turn"
            await session.close()()
    contents = [message["content"] for message in model_server.requests[-1]["messages"]]
    assert contents[1:3] == ["one", "I look."]


async def test_what_was_not_heard_is_recorded_as_that(opened, model_server, script, tmp_path):
    model_server.answers = [script.calls("bash", {"command": "echo begun; sleep 600"})]
    screen = Screen("begun")
    session = opened(screen)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            answer = session.prompt("one")
            await screen.stopped.wait()
            said = session.steering.say("Make it blue.", "m1")
            async with trio.open_nursery() as saying:
                outcomes = []

                async def say():
                    outcomes.append(await said())

                saying.start_soon(say)
                await trio.testing.wait_all_tasks_blocked()
                session.cancel()
            assert outcomes == [{"outcome": "promptRequired", "reason": "noRunningTurn"}]
            assert (await answer())["stopReason"] == "cancelled"
            await session.close()()
    journal = tmp_path / "home" / "sessions" / session.id / "inbox.jsonl"
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [record["type"] for record in records] == ["steer", "instruction_failed"]
