"""The worker in another place than the harness: what it runs there finds nothing of the harness."""

import os
import subprocess
import sys

import pytest
import trio
from harness.acp.client import KEY

APART = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c"]
"""In a root of its own: no process and no network of ours; what is mounted over is out of sight."""

can_be_apart = subprocess.run([*APART, "true"], check=False, capture_output=True).returncode == 0


async def test_a_worker_that_listens_is_reached_with_its_token(
    open_client, new_session, model_server, script, tmp_path
):
    away = tmp_path / "away"
    away.mkdir()
    model_server.answers = [script.calls("bash", {"command": "pwd; echo $COLOUR"}), script.says("Fine.")]
    worker = await trio.lowlevel.open_process(
        [sys.executable, "-m", "rlm_worker", "serve", "--tcp", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        env=os.environ | {"RLM_TOKEN": "t" * 32},
    )
    try:
        line = await worker.stdout.receive_some()
        port = int(line.decode().split()[2].rpartition(":")[2])
        place = {"host": "127.0.0.1", "port": port, "token": "t" * 32}
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
async def test_b64_a_worker_in_another_root_finds_neither_files_nor_key_of_the_harness(
    open_client, new_session, model_server, script, workdir, tmp_path
):
    serve = f"mount -t tmpfs none {tmp_path} && exec {sys.executable} -m rlm_worker serve --stdio"
    look = (
        f"ls -A {tmp_path}; ls /proc | grep -c '^[0-9]'; (env; cat /proc/*/environ /proc/*/cmdline) 2>/dev/null"
        f" | tr '\\0' '\\n' | grep -ac -e {KEY[:-1]}[{KEY[-1]}] -e rlm_harnes[s]; grep -c eth /proc/net/dev; true"
    )
    reach = f"import urllib.request\nurllib.request.urlopen({model_server.base_url!r}, timeout=5)"
    code = f"import glob; print(glob.glob({str(tmp_path)!r} + '/**', recursive=True)[1:])"
    model_server.answers = [
        script.calls("bash", {"command": look}),
        script.calls("ipython", {"code": code}),
        script.calls("ipython", {"code": reach}),
        script.says("Nothing."),
    ]
    async with open_client() as client:
        session = await new_session(client, execution_command=[*APART, serve], execution_cwd="/")
        assert (await client.prompt(session, "go"))["stopReason"] == "end_turn"
        assert (tmp_path / "home" / "sessions").exists()
    results = [message["content"] for message in model_server.requests[-1]["messages"] if message["role"] == "tool"]
    processes, found, interfaces = results[0].split()  # and nothing before it, of the harness's files
    assert (int(processes) < 12, found, interfaces) == (True, "0", "0")
    assert results[1] == "[]\n"
    assert "URLError" in results[2]
