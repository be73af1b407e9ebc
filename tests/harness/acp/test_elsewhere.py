"""The worker in another place than the harness: what it runs there finds nothing of the harness."""

import json
import os
import subprocess
import sys

import pytest
import trio
from harness.acp.client import KEY
from harness.acp.elsewhere import TOKEN, can_be_apart, looks, over_attach, over_command, over_tcp


async def test_a_worker_that_listens_is_reached_with_its_token(
    open_client, new_session, model_server, script, tmp_path
):
    away = tmp_path / "away"
    away.mkdir()
    model_server.answers = [script.calls("bash", {"command": "pwd; echo $COLOUR"}), script.says("Fine.")]
    worker = await trio.lowlevel.open_process(
        [sys.executable, "-m", "rlm_worker", "serve", "--tcp", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        env=os.environ | {"RLM_TOKEN": TOKEN},
    )
    try:
        line = await worker.stdout.receive_some()
        port = int(line.decode().split()[2].rpartition(":")[2])
        place = {"host": "127.0.0.1", "port": port, "token": TOKEN}
        asked = {"execution_tcp": place, "execution_cwd": str(away), "kernel_env": {"COLOUR": "blue"}}
        async with open_client() as client:
            answer = await client.prompt(await new_session(client, **asked), "go")
            assert answer["stopReason"] == "end_turn"
        assert model_server.requests[-1]["messages"][-1]["content"] == f"{away}\nblue\n"
    finally:
        worker.terminate()
        with trio.CancelScope(shield=True):
            await worker.wait()


@pytest.mark.skipif(not can_be_apart, reason="namespaces need root")
@pytest.mark.parametrize("reach", [over_command, over_attach, over_tcp])
async def test_b64_a_worker_in_another_root_finds_neither_files_nor_key_of_the_harness(
    open_client, new_session, model_server, script, tmp_path, reach
):
    looking = [script.calls(tool, arguments) for tool, arguments in looks(tmp_path, model_server.base_url)]
    model_server.answers = [*looking, script.says("Nothing.")]
    async with reach(tmp_path) as place, open_client() as client:
        session = await new_session(client, execution_cwd="/", kernel_env={"COLOUR": "blue"}, **place)
        assert (await client.prompt(session, "go"))["stopReason"] == "end_turn"
        assert (tmp_path / "home" / "sessions").exists()
    results = [message["content"] for message in model_server.requests[-1]["messages"] if message["role"] == "tool"]
    for found in map(json.loads, results):
        assert (found["files"], found["asked"]) == ([], "URLError")
        assert found["processes"] < 12
        assert "COLOUR=blue" in found["shown"]
        assert not any(secret in said for said in found["shown"] for secret in (KEY, TOKEN, "rlm_harness"))
    assert len(results) == 3
