"""The fields of a contract do what they say."""

import json
import re
import sys
from pathlib import Path

import msgspec

from rlm_harness.acp.contract import Contract, Limits, Provider, check_untrusted
from rlm_harness.prompts import DELEGATION

DOCUMENT = (Path(__file__).parents[3] / "docs" / "acp.md").read_text()
SNAPSHOT = "ai.prime.rlm/session-v1"


def defaults(kind, prefix=""):
    """Of each field, by its path, what it is if it is not there; None: it must be there."""
    for field in msgspec.structs.fields(kind):
        nested = {"provider": Provider, "policy": Limits}.get(field.name)
        if field.required:
            default = None
        elif field.default is msgspec.NODEFAULT:
            default = field.default_factory()
        else:
            default = field.default
        yield prefix + field.name, None if field.required else json.dumps(default)
        if nested is not None:
            yield from defaults(nested, f"{field.name}.")


def test_each_field_is_documented_with_its_default():
    told = dict(re.findall(r"^\| `([a-z_.]+)` \| (`.*?`|is needed) \|", DOCUMENT, re.MULTILINE))
    expected = {path: "is needed" if default is None else f"`{default}`" for path, default in defaults(Contract)}
    del expected["provider"]
    assert told == expected


def test_the_least_contract_of_the_documentation_is_one():
    blocks = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    contract, unknown = check_untrusted(json.loads(blocks[-1]))
    assert (contract.session_id, unknown) == ("rollout-1", [])


async def test_the_model_is_told_and_given_what_was_asked_for(
    open_client, new_session, model_server, script, workdir, tmp_path
):
    (tmp_path / "role.md").write_text("You are a gardener.\n")
    model_server.by_task = {
        "root": [
            script.calls("bash", {"command": "echo $COLOUR"}),
            script.calls("bash", {"command": "git log --all"}),
            script.calls("bash", {"command": "yes | head -c 100000; sleep 60"}),
            script.calls("ipython", {"code": "edit; rlm.agent.spawn('leaf').result().answer"}),
            script.says("done"),
        ],
        "leaf": [script.says("ok")],
    }
    asked = {
        "policy": {"max_depth": 1, "delegation_prompt": True, "exec_timeout": 1, "max_tool_output_bytes": 600},
        "system_prompt_path": str(tmp_path / "role.md"),
        "append_to_system_prompt": "for the root",
        "subagent_append_to_system_prompt": "for those below",
        "builtin_tools": ["ipython", "bash"],
        "kernel_env": {"COLOUR": "blue"},
        "provider": {"base_url": model_server.base_url, "api_key": "k", "headers": {"X-Team": "blue"}},
    }
    async with open_client() as client:
        answer = await client.prompt(await new_session(client, **asked), "root")
        assert answer["stopReason"] == "end_turn"
    root, leaf = (
        next(request for request in model_server.requests if request["messages"][1]["content"] == task)
        for task in ("root", "leaf")
    )
    assert root["messages"][0]["content"].startswith("You are a gardener.\n\nWorkspace: ")
    assert root["messages"][0]["content"].endswith(f"{DELEGATION}\n\nfor the root")
    assert leaf["messages"][0]["content"].endswith("no tool call.\n\nfor those below")
    assert [tool["function"]["name"] for tool in root["tools"]] == ["ipython", "bash", "wait"]
    assert all(headers["x-team"] == "blue" for headers in model_server.headers)
    results = [message["content"] for message in model_server.requests[-1]["messages"] if message["role"] == "tool"]
    assert results[0] == "blue\n"
    assert "--all" in results[1]  # which the git guard refuses
    assert "timed out after 1" in results[2]
    assert "bytes omitted" in results[2]
    assert "ok" in results[3]


async def test_a_budget_ends_a_prompt_and_says_which(open_client, new_session, model_server, script):
    model_server.answers = [script.calls("bash", {"command": "true"}, text="I look."), script.says("never asked for")]
    async with open_client() as client:
        answer = await client.prompt(await new_session(client, policy={"max_total_turns": 1}), "go")
        assert answer["stopReason"] == "max_turn_requests"
        assert answer["_meta"][SNAPSHOT]["last_stop_reason"] == "max_total_turns"
        assert client.reply == "I look."


async def test_what_was_said_in_a_prompt_that_was_cancelled_comes_with_the_next(
    open_client, new_session, model_server, script, workdir
):
    wait = "until [ -e go ]; do sleep 0.01; done"
    silent = script.says("")
    silent.data, silent.stall = silent.data[:20], True
    model_server.by_task = {
        "never mind": [script.calls("bash", {"command": wait}), silent],
        "Make it blue.\n\ngo": [script.says("Blue.")],
    }
    async with open_client() as client:
        session = await new_session(client)
        prompt = await client.send_prompt(session, "never mind")
        await client.shown("tool_call")
        said = {"prompt": [{"type": "text", "text": "Make it blue."}]}
        steering = await client.send("_session/steering", sessionId=session, **said)
        await client.ask("initialize", protocolVersion=1)  # comes behind it
        (workdir / "go").touch()
        assert (await client.answer(steering))["outcome"] == "injected"
        await client.notify("session/cancel", sessionId=session)
        assert (await client.answer(prompt))["stopReason"] == "cancelled"
        assert (await client.prompt(session, "go"))["stopReason"] == "end_turn"
    assert len(model_server.requests[-1]["messages"]) == 2


async def test_mcp_servers_of_the_client_are_functions_in_cells(open_client, new_session, model_server, script):
    program = Path(__file__).parents[1] / "mcp_server.py"
    server = {"name": "tools", "command": sys.executable, "args": [str(program), "stdio"], "env": []}
    model_server.answers = [script.calls("ipython", {"code": "await tools_add(20, 22)"}), script.says("Fine.")]
    async with open_client() as client:
        await client.prompt(await new_session(client, servers=[server]), "go")
    assert "42" in model_server.requests[-1]["messages"][-1]["content"]
