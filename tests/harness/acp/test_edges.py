"""Which model call led to which: whole sessions, checked against what the endpoint saw; and the rules, by events."""

import pytest

from rlm_harness.acp.edges import Edges
from rlm_harness.events import (
    AgentChanged,
    AgentSpawned,
    AnswerRead,
    AssistantReplied,
    Compacted,
    MessageRead,
    SummaryReplied,
    Usage,
)

SNAPSHOT = "ai.prime.rlm/session-v1"
EDGES = "ai.prime.acp/semantic-edges-v1"
MESSAGES = "[rlm.inbox.read(event.id).content['text'] for event in rlm.inbox.list() if event.type == 'agent.message']"
UNTIL_GO = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"

FAILING = """\
for task in ('child', 'stillborn'):
    try:
        rlm.agent.spawn(task).result()
    except rlm.Error as error:
        print(error)
"""


def cell(script, code):
    return script.calls("ipython", {"code": code})


def calls(model_server, task):
    """The names of the calls in that conversation, in order."""
    asked = zip(model_server.requests, model_server.headers, strict=True)
    return [headers["x-acp-model-request-id"] for body, headers in asked if body["messages"][1]["content"] == task]


def edges_of(answer):
    """The edges in an answer, which a client would take."""
    told = answer["_meta"][EDGES]["edges"]
    assert all(list(edge) == ["source_request_id", "target_request_id", "type"] for edge in told)
    edges = [tuple(edge.values()) for edge in told]
    assert len(set(edges)) == len(edges)
    assert all(source != target for source, target, _ in edges)
    return set(edges)


async def test_what_agents_tell_each_other_leads_from_the_call_that_said_it_to_the_one_that_heard_it(
    open_client, new_session, model_server, script
):
    model_server.by_task = {
        "root": [
            cell(script, "child = rlm.agent.spawn('child', persistent=True)\nchild.result().answer"),
            cell(script, f"said = {MESSAGES}\nchild.send('more')\nchild.result()\nsaid"),
            cell(script, "child.cancel()"),
            script.says("done"),
        ],
        "child": [
            cell(script, "rlm.agent.send_to_parent('hello')"),
            script.says("first"),
            script.says("second"),
        ],
    }
    async with open_client() as client:
        answer = await client.prompt(await new_session(client, policy={"max_depth": 1}), "root")
    assert "hello" in str(model_server.requests[-2]["messages"][-1])
    r1, r2, r3, r4 = calls(model_server, "root")
    c1, c2, c3 = calls(model_server, "child")
    assert edges_of(answer) == {
        (r1, r2, "continuation"),
        (r2, r3, "continuation"),
        (r3, r4, "continuation"),
        (c1, c2, "continuation"),
        (c2, c3, "continuation"),
        (r1, c1, "subagent_call"),
        (c2, r2, "subagent_return"),
        (c1, r3, "agent_message"),  # was sent in c1, however long ago
        (r2, c3, "agent_message"),
        (c3, r3, "subagent_return"),
        (r3, c3, "subagent_cancel"),
    }


async def test_what_steers_an_agent_at_work_leads_to_its_next_call(
    open_client, new_session, model_server, script, workdir
):
    model_server.by_task = {
        "root": [
            cell(script, f"child = rlm.agent.spawn('child')\n{UNTIL_GO}child.steer('left')\nopen('steered', 'w')"),
            cell(script, "child.result().answer"),
            script.says("done"),
        ],
        "child": [
            script.calls("bash", {"command": "touch go; until [ -e steered ]; do sleep 0.01; done"}),
            script.says("left it is"),
        ],
    }
    async with open_client() as client:
        answer = await client.prompt(await new_session(client, policy={"max_depth": 1}), "root")
    r1, r2, r3 = calls(model_server, "root")
    c1, c2 = calls(model_server, "child")
    assert edges_of(answer) == {
        (r1, r2, "continuation"),
        (r2, r3, "continuation"),
        (c1, c2, "continuation"),
        (r1, c1, "subagent_call"),
        (r1, c2, "agent_message"),
        (c2, r3, "subagent_return"),
    }


async def test_a_child_is_cancelled_at_the_last_call_that_it_was_answered(
    open_client, new_session, model_server, script, workdir
):
    stalling = script.says("never", "heard")
    stalling.data, stalling.stall = stalling.data[:60], True
    model_server.by_task = {
        "root": [
            cell(script, f"child = rlm.agent.spawn('child')\n{UNTIL_GO}child.cancel()\nchild.cancel().status"),
            script.says("done"),
        ],
        "child": [script.calls("bash", {"command": "true"}), stalling],
    }
    async with open_client() as client:
        session = await new_session(client, policy={"max_depth": 1})
        prompt = await client.send_prompt(session, "root")
        await model_server.wait_asked(3)
        (workdir / "go").touch()
        answer = await client.answer(prompt)
    r1, r2 = calls(model_server, "root")
    c1, unanswered = calls(model_server, "child")
    edges = edges_of(answer)
    assert edges == {(r1, r2, "continuation"), (r1, c1, "subagent_call"), (r1, c1, "subagent_cancel")}
    assert not any(unanswered in edge for edge in edges)


async def test_that_a_child_has_failed_is_told_if_it_was_ever_answered(open_client, new_session, model_server, script):
    refused = script.status(401, {"error": {"message": "no"}})
    model_server.by_task = {
        "root": [cell(script, FAILING), script.says("done")],
        "child": [script.calls("bash", {"command": "true"}), refused],
        "stillborn": [refused],
    }
    async with open_client() as client:
        answer = await client.prompt(await new_session(client, policy={"max_depth": 1}), "root")
    assert str(model_server.requests[-1]["messages"][-1]).count("agent failed") == 2
    r1, r2 = calls(model_server, "root")
    c1, _ = calls(model_server, "child")
    assert edges_of(answer) == {(r1, r2, "continuation"), (r1, c1, "subagent_call"), (c1, r2, "subagent_failed")}


async def test_after_a_cancelled_prompt_the_next_follows_on_what_was_there_before_it(
    open_client, new_session, model_server, script
):
    model_server.by_task = {
        "root": [
            script.says("ready"),
            cell(script, "child = rlm.agent.spawn('child')\nchild.result().answer"),
            script.calls("bash", {"command": "echo begun; sleep 600"}),
            cell(script, "child.result().answer"),
            script.says("done"),
        ],
        "child": [script.says("grown up")],
    }
    async with open_client() as client:
        session = await new_session(client, policy={"max_depth": 1})
        await client.prompt(session, "root")
        number = await client.send_prompt(session, "never mind")
        await client.until(lambda: any("begun" in str(update) for update in client.of("tool_call_update")))
        await client.notify("session/cancel", sessionId=session)
        cancelled = await client.answer(number)
        answer = await client.prompt(session, "go on")
    r1, r2, r3, r4, r5 = calls(model_server, "root")
    (c1,) = calls(model_server, "child")
    before = {
        (r1, r2, "continuation"),
        (r2, c1, "subagent_call"),
        (r2, r3, "continuation"),
        (c1, r3, "subagent_return"),
    }
    assert edges_of(cancelled) == before
    assert edges_of(answer) == before | {
        (r1, r4, "continuation"),
        (r4, r5, "continuation"),
        (c1, r5, "subagent_return"),  # it was read once more
    }


async def test_a_summary_follows_on_what_it_sums_up_and_each_attempt_at_it_is_told(
    open_client, new_session, model_server, script
):
    made, glad = "I made it, with great care, in several steps.", "I am glad."
    model_server.answers = [
        script.calls("bash", {"command": "echo made"}),
        script.says(""),
        script.says(made),
        script.says("It is made."),
        script.says(glad),
        script.says("You are welcome."),
    ]
    async with open_client() as client:
        session = await new_session(client, policy={"summarize_at_tokens": 10})
        await client.prompt(session, "make it")
        answer = await client.prompt(session, "thanks")
    first, useless, summary, second, another, third = [
        headers["x-acp-model-request-id"] for headers in model_server.headers
    ]
    assert [request.get("tool_choice") == "none" for request in model_server.requests] == [
        False, True, True, False, True, False
    ]  # fmt: skip
    assert edges_of(answer) == {
        (first, useless, "compaction_attempt"),
        (first, summary, "compaction_attempt"),
        (summary, second, "compaction"),
        (second, another, "compaction_attempt"),
        (another, third, "compaction"),
    }
    metrics = answer["_meta"][SNAPSHOT]["metrics"]
    assert (metrics["num_compactions"], metrics["has_compacted"]) == (2, 1)
    assert (metrics["turns_since_last_compaction"], metrics["turns_between_compactions_mean"]) == (1, 1.0)
    assert metrics["compaction_summary_chars_mean"] == (len(made) + len(glad)) / 2
    assert metrics["compaction_chars_dropped_mean"] > 0


async def test_attempts_at_a_summary_are_told_also_if_none_was_of_use(open_client, new_session, model_server, script):
    model_server.answers = [script.calls("bash", {"command": "echo made"}), script.says(""), script.says("")]
    async with open_client() as client:
        session = await new_session(client, policy={"summarize_at_tokens": 10, "max_compaction_attempts": 2})
        answer = await client.prompt(session, "make it")
    first, *attempts = [headers["x-acp-model-request-id"] for headers in model_server.headers]
    assert edges_of(answer) == {(first, attempt, "compaction_attempt") for attempt in attempts}
    snapshot = answer["_meta"][SNAPSHOT]
    assert (snapshot["last_stop_reason"], snapshot["metrics"]["num_compactions"]) == ("compaction_failed", 0)


def replied(name, agent=""):
    return AssistantReplied(1, "", "stop", Usage(), 0.1, request_id=name, record=f"record of {name}", agent=agent)


def read(name, agent=""):
    return MessageRead("child" if not agent else "", f"record of {name}", agent=agent)


SPAWNED = AgentSpawned("", None, 1, "task", "ledger", agent="child")


def all_of(*events):
    edges = Edges()
    for event in events:
        edges.take(event)
    return [tuple(edge.values()) for edge in edges.told["edges"]]


def test_calls_that_were_not_answered_have_no_edges():
    answer = AnswerRead("completed", None, agent="child")
    cancelled = AgentChanged("cancelled", cancelled_by="record of r1", agent="child")
    assert all_of(replied("r1"), SPAWNED, answer, read("unknown"), cancelled, SummaryReplied(1)) == []
    assert all_of(SPAWNED, SummaryReplied(1, "s1"), replied("c1", "child")) == []


def test_calls_without_a_name_have_no_edges():
    assert all_of(replied(""), SPAWNED, replied("", "child"), read("", "child"), replied("")) == []


def test_an_answer_comes_from_the_call_that_gave_it_also_if_it_is_read_later():
    events = [replied("r1"), SPAWNED, replied("c1", "child"), replied("c2", "child")]
    events += [AnswerRead("idle", "record of c1", agent="child"), replied("r2")]
    assert ("c1", "r2", "subagent_return") in all_of(*events)
    assert ("c2", "r2", "subagent_return") not in all_of(*events)


def test_what_is_read_twice_leads_to_a_call_once():
    events = [replied("r1"), SPAWNED, replied("c1", "child"), read("c1"), read("c1"), replied("r2")]
    assert all_of(*events).count(("c1", "r2", "agent_message")) == 1


@pytest.mark.parametrize(
    ("status", "kinds"),
    [("completed", ["subagent_return"]), ("failed", ["subagent_failed"]), ("cancelled", []), ("some", [])],
)
def test_how_a_child_has_ended_is_a_return_only_if_it_has_answered(status, kinds):
    events = [replied("r1"), SPAWNED, replied("c1", "child")]
    events += [AnswerRead(status, "record of c1", agent="child"), replied("r2")]
    assert [kind for source, _, kind in all_of(*events) if source == "c1"] == kinds


def test_a_child_that_ends_for_another_reason_was_not_cancelled_by_a_call():
    assert all_of(replied("r1"), SPAWNED, replied("c1", "child"), AgentChanged("cancelled", agent="child")) == [
        ("r1", "c1", "subagent_call")
    ]


def test_what_a_rolled_back_call_has_begun_goes_on_and_what_it_has_read_is_forgotten():
    edges = Edges()
    edges.take(replied("r1"))
    mark = edges.mark()
    for event in (replied("r2"), SPAWNED, replied("c1", "child"), read("c1"), SummaryReplied(1, "s1")):
        edges.take(event)
    edges.take(Compacted(1, "", 1, Usage(), 0.1, request_id="s1"))
    edges.take(read("r2", "child"))
    edges.roll_back(mark)
    for event in (replied("c2", "child"), replied("r3")):
        edges.take(event)
    edges.take(AgentChanged("cancelled", cancelled_by="record of r2", agent="child"))
    assert [tuple(edge.values()) for edge in edges.told["edges"]] == [
        ("r1", "r2", "continuation"),
        ("r2", "c1", "subagent_call"),
        ("r2", "s1", "compaction_attempt"),
        ("c1", "c2", "continuation"),
        ("r2", "c2", "agent_message"),
        ("r1", "r3", "continuation"),
        ("r2", "c2", "subagent_cancel"),
    ]
