"""The runner of the verifiers framework, unmodified, drives the program: whole rollouts against a scripted model."""

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import rlm_harness

PYTHON = Path(sys.prefix) / "verifiers" / "bin" / "python"
DAEMON = "until [ -e graded ]; do sleep 0.05; done; echo 0.75 > new; mv new answer"
STATE = "/tmp/vf-rlm-state"
"""Where that framework has the harness keep its files."""

can_be_apart = subprocess.run(["unshare", "--mount", "--net", "true"], check=False, capture_output=True).returncode == 0
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
    return json.loads(done.stdout.splitlines()[-1])


@installed
async def test_the_harness_may_stay_on_the_host_with_its_worker_alone_in_the_runtime(
    model_server, script, version, environment, tmp_path
):
    model_server.by_task = {
        "whole": [
            script.calls("bash", {"command": f"setsid sh -c '{DAEMON}' </dev/null >/dev/null 2>&1 &"}),
            script.calls("bash", {"command": f"ls -A {STATE}; grep -c eth /proc/net/dev; true"}),
            script.says("Blue."),
            script.says("Again."),
        ],
        "cancelled": [script.says("at once")],
        "failing": [script.says("not at all")],
    }
    serve = f"{sys.executable} -m rlm_worker serve --stdio"
    apart = f"mkdir -p {STATE}; exec unshare --mount --net sh -c 'mount -t tmpfs none {STATE} && exec {serve}'"
    worker = tmp_path / "worker"
    worker.write_text(f"#!/bin/sh\necho $PWD >> {tmp_path}/began\n{apart if can_be_apart else f'exec {serve}'}\n")
    worker.chmod(0o755)
    ours = f"/tmp/vf-rlm-{hashlib.sha256(version.encode()).hexdigest()}/bin/rlm"
    plugin = {"id": "rlm_verifiers", "env": {"RLM_HARNESS": ours, "RLM_WORKER": str(worker)}}
    root = str(Path(rlm_harness.__file__).parents[1])
    results = await roll_out(model_server, environment | {"PYTHONPATH": root}, plugin)
    assert [result["ok"] for result in results.values()] == [True] * 3, results
    assert (results["whole"]["reward"], results["whole"]["replies"]) == (0.75, ["Blue.", "Again."])
    assert len((tmp_path / "began").read_text().splitlines()) == 3
    conversation = [request["messages"] for request in model_server.requests if len(request["messages"]) > 5][-1]
    seen = [message["content"] for message in conversation if message["role"] == "tool"][1]
    assert not can_be_apart or seen == "0\n"  # neither the harness's files nor its network


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
        "cancelled": [script.calls("bash", {"command": "sleep 600"})],
        "failing": [script.status(503, {"error": {"message": "busy"}}, Retry_After="600")] * 10,
    }
    results = await roll_out(model_server, environment, {"id": "rlm", "version": version}, words)
    whole = results["whole"]
    assert (whole["ok"], whole["errors"], whole["reward"]) == (True, [], 0.75), whole
    assert whole["replies"] == ["Blue.", "Again."]
    assert whole["receipt"]["outcome"] == "injected"
    assert any(words in str(request["messages"][-1]) for request in model_server.requests)
    assert whole["metrics"]["sub_rlm_num_calls"] == 2
    assert whole["edges"] == ["continuation"] * 3 + ["subagent_call"] * 2 + ["subagent_return"] * 2
    assert (results["cancelled"]["ok"], results["cancelled"]["reward"]) == (True, 0), results["cancelled"]
    assert results["failing"]["ok"] is False
    assert results["failing"]["errors"] == ["ProviderError"], results["failing"]
