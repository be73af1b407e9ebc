"""Sessions as clients see them: a real process, a real worker, and a model that follows a script."""

import os
import sys

import pytest
import trio
from harness.acp.client import KEY, Refused

SNAPSHOT = "ai.prime.rlm/session-v1"
EDGES = "ai.prime.acp/semantic-edges-v1"


async def test_the_program_says_what_it_can(open_client):
    async with open_client(initialize=False) as client:
        can = await client.ask("initialize", protocolVersion=1)
    assert can["protocolVersion"] == 1
    assert can["agentInfo"]["name"] == "rlm"
    assert can["agentCapabilities"]["sessionCapabilities"] == {"close": {}}
    assert can["agentCapabilities"]["promptCapabilities"] == {"image": True, "audio": False, "embeddedContext": True}
    assert can["agentCapabilities"]["mcpCapabilities"]["http"] is True
    assert can["_meta"] == {
        "ai.prime.rlm/contract-v1": True,
        "ai.prime.rlm/execution-v1": True,
        "steering": {"supported": True},
    }


async def test_a_prompt_is_worked_on_and_shown_as_it_is(open_client, new_session, model_server, script, workdir):
    (workdir / "a.txt").write_text("one\n")
    model_server.answers = [
        script.calls("bash", {"command": "echo out; exit 3"}, text="I look."),
        script.calls("edit", {"path": "a.txt", "old_str": "one", "new_str": "two"}),
        script.says("Do", "ne."),
    ]
    async with open_client() as client:
        session = await new_session(client)
        answer = await client.prompt(session, "go")
        assert client.reply == "Done."
        assert answer["stopReason"] == "end_turn"
        assert answer["usage"]["outputTokens"] == 2
        snapshot = answer["_meta"][SNAPSHOT]
        assert (snapshot["session_id"], snapshot["last_stop_reason"]) == ("0123456789abcdef", "done")
        assert (snapshot["turns"], snapshot["model"]) == (3, "m")
        assert all(type(value) in (int, float) for value in snapshot["metrics"].values())
        bash, edit = client.of("tool_call")
        assert (bash["title"], bash["kind"], bash["status"]) == ("bash: echo out; exit 3", "execute", "in_progress")
        assert edit["locations"] == [{"path": str(workdir / "a.txt")}]
        assert edit["content"] == [{"type": "diff", "path": str(workdir / "a.txt"), "oldText": "one", "newText": "two"}]
        ends = [update for update in client.of("tool_call_update") if "status" in update]
        assert [end["toolCallId"] for end in ends] == [bash["toolCallId"], edit["toolCallId"]]
        assert "out" in ends[0]["content"][0]["content"]["text"]
        assert ends[0]["rawOutput"]["exit_code"] == 3
        assert ends[1]["content"][0]["type"] == "diff"
    assert (workdir / "a.txt").read_text() == "two\n"


async def test_model_calls_have_names_and_edges_lead_from_one_to_the_next(
    open_client, new_session, model_server, script
):
    spawn = "rlm.agent.spawn('child').result().answer"
    model_server.by_task = {
        "root": [script.calls("ipython", {"code": spawn}), script.status(503), script.says("done")],
        "child": [script.says("grown up")],
    }
    async with open_client() as client:
        answer = await client.prompt(await new_session(client, policy={"max_depth": 1}), "root")
    names = [headers["x-acp-model-request-id"] for headers in model_server.headers]
    root, child, failed, again = names
    assert (failed, len({root, child, again})) == (again, 3)
    assert [headers["idempotency-key"] for headers in model_server.headers] == names
    assert model_server.bodies[2] == model_server.bodies[3]
    edges = answer["_meta"][EDGES]["edges"]
    assert {(edge["source_request_id"], edge["target_request_id"], edge["type"]) for edge in edges} == {
        (root, child, "subagent_call"),
        (root, again, "continuation"),
        (child, again, "subagent_return"),
    }
    assert len(edges) == 3
    assert answer["_meta"][SNAPSHOT]["supervisor"] == {"subagent_calls": 1, "active_subagent_calls": 0}
    statuses = [[entry["status"] for entry in plan["entries"]] for plan in client.of("plan")]
    assert (statuses[0], statuses[-1]) == (["pending"], ["completed"])


async def test_who_watches_sees_why_nothing_happens(open_client, new_session, model_server, script):
    model_server.answers = [
        script.status(503, {"error": {"message": "busy"}}),
        script.calls("edit", {"file": "a.txt"}),
        script.says("Fine."),
    ]
    async with open_client() as client:
        await client.prompt(await new_session(client), "go")
        assert "busy" in client.of("agent_thought_chunk")[0]["content"]["text"]
        refused = client.of("tool_call")[0]
        assert (refused["title"], refused["status"]) == ("edit", "failed")
        assert "arguments of edit" in refused["content"][0]["content"]["text"]
        assert client.reply == "Fine."


async def test_a_session_is_found_by_the_id_that_its_client_knows(
    open_client, new_session, model_server, script, tmp_path
):
    model_server.answers = [script.says("Fine.")]
    async with open_client() as client:
        session = await new_session(client)
        await client.prompt(session, "go")
    program = [sys.executable, "-m", "rlm_harness", "show", session]
    shown = await trio.run_process(program, env=os.environ | {"RLM_HOME": str(tmp_path / "home")}, capture_stdout=True)
    assert b"Fine." in shown.stdout


async def test_an_editors_session_has_the_limits_of_the_command_line(open_client, model_server, script, workdir):
    model_server.answers = [script.calls("bash", {"command": "true"}, text="I look.")]
    limits = ["--model", "m", "--base-url", model_server.base_url, "--max-turns", "1"]
    async with open_client(*limits) as client:
        session = (await client.ask("session/new", cwd=str(workdir), mcpServers=[]))["sessionId"]
        answer = await client.prompt(session, "go")
    assert answer["stopReason"] == "max_turn_requests"
    told = answer["_meta"][SNAPSHOT]["limits"]
    assert (told["max_total_turns"], told["max_depth"], "max_total_tokens" in told) == (1, 1, False)


async def test_pictures_go_to_the_model(open_client, new_session, model_server, script):
    model_server.answers = [script.says("A dot.")]
    blocks = [{"type": "text", "text": "What is "}, {"type": "text", "text": "it?"}]
    async with open_client() as client:
        session = await new_session(client)
        picture = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}
        await client.ask("session/prompt", sessionId=session, prompt=[*blocks, picture])
        with pytest.raises(Refused, match=r"prompt\.0\.data: is not Base64"):
            await client.ask("session/prompt", sessionId=session, prompt=[picture | {"data": "!!!"}])
    assert model_server.requests[0]["messages"][1]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    ]


async def test_a_cancelled_prompt_leaves_the_session_as_it_was(open_client, new_session, model_server, script):
    model_server.answers = [script.calls("bash", {"command": "echo begun; sleep 600"}), script.says("Fine.")]
    async with open_client() as client:
        session = await new_session(client)
        number = await client.send_prompt(session, "never mind")
        await client.until(lambda: any("begun" in str(update) for update in client.of("tool_call_update")))
        await client.notify("session/cancel", sessionId=session)
        answer = await client.answer(number)
        assert answer["stopReason"] == "cancelled"
        assert answer["_meta"][SNAPSHOT]["last_stop_reason"] == "cancelled"
        answer = await client.prompt(session, "go")
        assert answer["_meta"][EDGES]["edges"] == []  # what was cancelled leads nowhere
    assert [message["content"] for message in model_server.requests[-1]["messages"][1:]] == ["go"]


async def test_cancelling_is_for_all_prompts_that_are_there_and_for_none_that_come_later(
    open_client, new_session, model_server, script
):
    model_server.answers = [script.says("Three.")]
    async with open_client() as client:
        session = await new_session(client)
        first, second = [await client.send_prompt(session, text) for text in ("one", "two")]
        await client.notify("session/cancel", sessionId=session)
        third = await client.send_prompt(session, "three")
        assert (await client.answer(first))["stopReason"] == "cancelled"
        assert (await client.answer(second))["stopReason"] == "cancelled"
        assert (await client.answer(third))["stopReason"] == "end_turn"
        assert client.reply == "Three."
    assert [message["content"] for message in model_server.requests[-1]["messages"][1:]] == ["three"]


async def test_what_is_said_meanwhile_enters_the_conversation_or_asks_for_a_prompt(
    open_client, new_session, model_server, script, workdir
):
    wait = "touch here; until [ -e go ]; do sleep 0.01; done"
    model_server.answers = [script.calls("bash", {"command": wait}), script.says("Blue.")]
    said = {"prompt": [{"type": "text", "text": "Make it blue."}], "messageId": "m1"}
    async with open_client() as client:
        session = await new_session(client)
        assert (await client.ask("_session/steering", sessionId=session, **said))["outcome"] == "promptRequired"
        prompt = await client.send_prompt(session, "go")
        await client.shown("tool_call")
        steering = [await client.send("_session/steering", sessionId=session, **said) for _ in range(2)]
        await client.ask("initialize", protocolVersion=1)  # comes behind them
        (workdir / "go").touch()
        assert [await client.answer(number) for number in steering] == [{"outcome": "injected"}] * 2
        assert (await client.answer(prompt))["stopReason"] == "end_turn"
        other = {"prompt": [{"type": "text", "text": "Make it red."}], "messageId": "m1"}
        with pytest.raises(Refused) as refused:
            await client.ask("_session/steering", sessionId=session, **other)
        assert "messageId" in refused.value.data["reason"]
    contents = [message["content"] for message in model_server.requests[-1]["messages"]]
    assert contents.count("Make it blue.") == 1


async def test_closing_gives_the_last_state_as_often_as_it_is_asked_for(open_client, new_session, model_server, script):
    model_server.answers = [script.calls("bash", {"command": "echo begun; sleep 600"})]
    async with open_client() as client:
        session = await new_session(client)
        prompt = await client.send_prompt(session, "go")
        await client.shown("tool_call")
        closing = [await client.send("session/close", sessionId=session) for _ in range(2)]
        closed = [await client.answer(number) for number in closing]
        assert closed[0] == closed[1]
        for method in ("session/prompt", "_session/steering"):
            with pytest.raises(Refused, match="the session is closed"):
                await client.ask(method, sessionId=session, prompt=[{"type": "text", "text": "go"}])
        assert closed[0]["_meta"][SNAPSHOT]["last_stop_reason"] == "cancelled"
        assert (await client.answer(prompt))["stopReason"] == "cancelled"
        assert await client.ask("session/close", sessionId=session) == closed[0]
        assert (await client.ask("session/close", sessionId=await new_session(client)))["_meta"][SNAPSHOT]["turns"] == 0


async def test_what_the_model_endpoint_does_not_give_is_told_apart(open_client, new_session, model_server, script):
    model_server.answers = [script.status(503), script.status(401, {"error": {"message": f"bad key {KEY}"}})]
    async with open_client() as client:
        session = await new_session(
            client, provider={"base_url": model_server.base_url, "api_key": KEY, "max_retries": 0}
        )
        errors = []
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await client.prompt(session, "go")
            errors.append(refused.value)
    assert [(error.code, error.data["kind"], error.data["retryable"]) for error in errors] == [
        (-32603, "model_transport", True),
        (-32603, "model_refused", False),
    ]
    assert KEY not in str(errors[1].data)
    assert errors[0].data["_meta"][SNAPSHOT]["last_stop_reason"] == "error"
