"""The runner of the verifiers framework, unmodified, drives the program: whole rollouts against a scripted model."""

import hashlib
import json
import os
import secrets
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import trio
from harness.acp.elsewhere import TOKEN, can_be_apart, looks, over_attach, over_tcp

import rlm_harness

PYTHON = Path(sys.prefix) / "verifiers" / "bin" / "python"
DAEMON = "until [ -e graded ] || [ ! -d $PWD ]; do sleep 0.05; done; echo 0.75 > new; mv new answer"
STATE = "/tmp/vf-rlm-state"
"""Where that framework has the harness keep its files."""

HELD = "exec flock lock sh -c 'touch began; sleep 600'"
"""Runs until it is ended, and for so long all that descends from it holds the lock."""

CHILDREN = """\
import os, time
while os.system("grep -qs '{words}' {state}/*/home/sessions/*/inbox.jsonl"):  # so long there is a turn to say it in
    time.sleep(0.05)
agents = [rlm.agent.spawn(task) for task in ("child one", "child two")]
print([agent.result().answer for agent in agents])
"""

installed = pytest.mark.skipif(not PYTHON.exists(), reason="make .venv/.verifiers installs that framework")


@pytest.fixture
def version():
    """What that framework takes for a version of its own harness, installed already: it is ours."""
    name = f"ours-{secrets.token_hex(8)}"
    directory = Path(f"/tmp/vf-rlm-{hashlib.sha256(name.encode()).hexdigest()}")
    (directory / "bin").mkdir(parents=True)
    (directory / ".ready").touch()
    program = directory / "bin" / "rlm"
    program.write_text(f"#!{sys.executable}\nfrom rlm_harness.commands.acp import rlm\nrlm()\n")
    program.chmod(0o755)
    yield name
    shutil.rmtree(directory)


@pytest.fixture
def environment(tmp_path):
    """A home with a `uv` that finds all of the runner's dependencies installed: nothing is fetched in a test."""
    uv = tmp_path / "home" / ".local" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(f'#!/bin/sh\ncase "$*" in *--help) echo --script;; *find*) echo {PYTHON};; esac\n')
    uv.chmod(0o755)
    return os.environ | {"HOME": str(tmp_path / "home"), "MODEL_KEY": "sk-upstream", "PYTHONDONTWRITEBYTECODE": "1"}


async def roll_out(model_server, environment, harness, *more):
    program = [PYTHON, Path(__file__).with_name("rollout.py"), model_server.base_url, json.dumps(harness), *more]
    with trio.fail_after(150):
        done = await trio.run_process(program, env=environment, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert not [result["id"] for result in results.values() if Path(STATE, result["id"]).exists()]
    return results


def results_of_tools(model_server, task):
    """What the root agent of that task was told by its tools, one after the other."""
    conversations = [request["messages"] for request in model_server.requests]
    last = [messages for messages in conversations if messages[1]["content"] == task][-1]
    return [message["content"] for message in last if message["role"] == "tool"]


@installed
@pytest.mark.parametrize(
    "reach", [over_attach, pytest.param(over_tcp, marks=pytest.mark.skipif(not can_be_apart, reason="needs root"))]
)
async def test_the_harness_may_stay_on_the_host_with_its_worker_alone_in_the_runtime(
    model_server, script, version, environment, reach
):
    model_server.by_task = {
        "whole": [
            script.calls("bash", {"command": f"setsid sh -c '{DAEMON}' </dev/null >/dev/null 2>&1 &"}),
            *[script.calls(tool, arguments) for tool, arguments in looks(STATE, model_server.base_url)],
            script.says("Blue."),
            script.says("Again."),
        ],
        "cancelled": [script.calls("bash", {"command": HELD})],
    }
    ours = f"/tmp/vf-rlm-{hashlib.sha256(version.encode()).hexdigest()}/bin/rlm"
    Path(STATE).mkdir(exist_ok=True)
    async with reach(STATE) as place:
        if "execution_tcp" in place:
            worker = {"RLM_WORKER_ADDRESS": "{host}:{port}".format(**place["execution_tcp"])}
        else:
            worker = {"RLM_WORKER": shlex.join(place["execution_command"])}
        plugin = {"id": "rlm_verifiers", "env": {"RLM_HARNESS": ours} | worker, "forward_env": ["RLM_TOKEN"]}
        root = str(Path(rlm_harness.__file__).parents[1])
        results = await roll_out(model_server, environment | {"PYTHONPATH": root, "RLM_TOKEN": TOKEN}, plugin)
    whole = results["whole"]
    assert (whole["ok"], whole["reward"], whole["replies"]) == (True, 0.75, ["Blue.", "Again."]), whole
    check_ends(results)
    _, *found = results_of_tools(model_server, "whole")
    assert len(found) == 3
    assert not any(whole["secret"] in tool for tool in found)
    for tool in map(json.loads, found) if can_be_apart else ():
        assert (tool["files"], tool["asked"]) == ([], "URLError")
        assert f"PWD={whole['place']}" in tool["shown"]
        assert not any(secret in said for said in tool["shown"] for secret in ("sk-upstream", TOKEN, "vf-rlm"))


@installed
async def test_whole_rollouts(model_server, script, version, environment):
    words = f"Make it blue, {version}."
    code = CHILDREN.replace("{words}", words).replace("{state}", STATE)
    model_server.by_task = {
        "whole": [
            script.calls("bash", {"command": f"setsid sh -c '{DAEMON}' </dev/null >/dev/null 2>&1 &"}),
            script.calls("ipython", {"code": code}),
            script.says("Bl", "ue."),
            script.says("Again."),
        ],
        "child one": [script.says("one")],
        "child two": [script.says("two")],
        "cancelled": [script.calls("bash", {"command": HELD})],
    }
    results = await roll_out(model_server, environment, {"id": "rlm", "version": version}, words)
    whole = results["whole"]
    assert (whole["ok"], whole["errors"], whole["reward"]) == (True, [], 0.75), whole
    assert whole["replies"] == ["Blue.", "Again."]
    assert whole["receipt"]["outcome"] == "injected"
    assert any(words in str(request["messages"][-1]) for request in model_server.requests)
    assert whole["metrics"]["sub_rlm_num_calls"] == 2
    assert whole["edges"] == ["continuation"] * 3 + ["subagent_call"] * 2 + ["subagent_return"] * 2
    assert results_of_tools(model_server, "whole")[1] == "['one', 'two']\n"
    check_ends(results)


def check_ends(results):
    """A turn was cancelled, and a model could not be reached."""
    cancelled, failing = results["cancelled"], results["failing"]
    assert (cancelled["cancelled"], cancelled["stop"], cancelled["reward"]) == (True, "user_closed", 1), cancelled
    assert (failing["ok"], failing["errors"]) == (False, ["InterceptionError"]), failing
    assert "sub_rlm_num_calls" in failing["metrics"]  # told when it was closed: no prompt was answered with them
