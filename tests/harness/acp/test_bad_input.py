"""What clients should not send, and what should not happen to a workspace: typed answers, and others go on."""

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from harness.acp.client import KEY, Client, Refused, contract


async def ended(pid):
    with suppress(ProcessLookupError), trio.fail_after(20):
        descriptor = os.pidfd_open(pid)
        await trio.lowlevel.wait_readable(descriptor)
        os.close(descriptor)


def waiting(descriptor):
    """Bytes in the pipe."""
    size = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, size)
    return size[0]


async def refused(client, method, **params):
    with pytest.raises(Refused) as caught:
        await client.ask(method, **params)
    return caught.value


async def test_garbage_is_answered_and_harms_nothing(open_client, new_session, model_server, script):
    model_server.answers = [script.says("Fine.")]
    lines = [
        b"garbage",
        b"{}",
        b'{"jsonrpc": "1.0", "id": 1001, "method": "x"}',
        b'{"id": "1002", "method": 7}',
        b'{"id": [1], "method": "x"}',
        b"\xff\xfe",
    ]
    async with open_client() as client:
        session = await new_session(client)
        await client.write(b"\n".join([*lines, b"", b"[" * 100_000, b'{"id": 7, "result": {}}', b""]))
        piece = b"x" * (1 << 20)
        for _ in range(64):
            await client.write(piece)
        await client.write(b"\n")
        await client.notify("of/nothing")
        assert (await client.prompt(session, "go"))["stopReason"] == "end_turn"
        codes = [stray["error"]["code"] for stray in client.strays]
        assert codes == [-32700, -32600, -32600, -32700, -32600, -32600]
        assert [client.answers[number]["error"]["code"] for number in (1001, "1002")] == [-32600] * 2
        assert "33554432 bytes" in client.strays[-1]["error"]["data"]["reason"]


async def test_a_message_of_countless_values_is_refused_before_it_takes_the_memory(
    open_client, new_session, model_server, script
):
    model_server.answers = [script.says("Fine.")]
    async with open_client() as client:
        session = await new_session(client)
        prompt = b"{}" + b",{}" * 5_000_000
        await client.write(b'{"id": 1001, "method": "session/prompt", "params": {"prompt": [%s]}}\n' % prompt)
        await client.until(lambda: 1001 in client.answers)
        assert client.answers[1001]["error"]["message"] == "the message has more than 20000 values"
        error = await refused(client, "session/prompt", sessionId=session, prompt=[{}] * 5000)
        assert error.data["faults"][-1].endswith(" more")
        assert len(error.data["faults"]) == 21
        await client.write(b'"' + b',[{\\"' * 1_000_000 + b"\n")  # a text without an end
        text = ',[{"\\' * 1_000_000  # and one with what would be values
        assert (await client.prompt(session, text))["stopReason"] == "end_turn"
    assert model_server.requests[0]["messages"][1]["content"] == text


async def test_half_a_character_is_taken_as_decoders_do(open_client, new_session, model_server, script):
    model_server.answers = [script.says("Fine.")]
    async with open_client() as client:
        assert (await client.prompt(await new_session(client), "bad \ud800 one"))["stopReason"] == "end_turn"
    assert model_server.requests[0]["messages"][1]["content"] == "bad \ufffd one"


async def test_requests_out_of_order_and_for_nobody_are_refused(open_client, workdir):
    async with open_client(initialize=False) as client:
        assert (await refused(client, "session/new", cwd=str(workdir), mcpServers=[])).code == -32600
        assert (await refused(client, "initialize", protocolVersion="one")).code == -32602
        assert (await client.ask("initialize", protocolVersion=2))["protocolVersion"] == 1
        assert (await refused(client, "session/load", sessionId="x")).code == -32601
        text = [{"type": "text", "text": "go"}]
        for method in ("session/prompt", "session/close", "_session/steering"):
            error = await refused(client, method, sessionId="not-ours", prompt=text)
            assert (error.code, error.data) == (-32002, {"sessionId": "not-ours"})
        await client.notify("session/cancel", sessionId="not-ours")
        await client.notify("session/new", cwd=str(workdir), mcpServers=[])  # nobody could know that session
        assert (await refused(client, "session/prompt", prompt=text)).data["faults"] == ["sessionId: Field required"]
        error = await refused(client, "session/new", cwd=str(workdir), mcpServers=[])
        assert "ai.prime.rlm/runtime-v1" in error.data["reason"]


async def test_all_that_is_wrong_with_a_contract_is_told_by_path_without_its_secrets(open_client, workdir):
    asked = contract("http://127.0.0.1:1/v1", policy={"max_depth": -1, "exec_timeout": "long", "compaction_fanout": 5})
    asked |= {"skills": ["edit", "dance"], "kernel_env": {"A": 1}, "session_id": "a b", "harness": {"x": 1}}
    asked["provider"]["api_key"] = 17
    del asked["model"]
    params = {"cwd": str(workdir), "mcpServers": []}
    async with open_client() as client:
        error = await refused(client, "session/new", **params, _meta={"ai.prime.rlm/runtime-v1": asked})
        assert error.code == -32602
        paths = {fault.partition(":")[0] for fault in error.data["faults"]}
        assert paths == {
            "model",
            "session_id",
            "policy.max_depth",
            "policy.exec_timeout",
            "policy.compaction_fanout",
            "skills",
            "kernel_env",
            "harness",
            "provider.api_key",
        }
        assert all(path in error.data["reason"] for path in paths)
        wrong = [
            ({"policy": {"max_depth": 5}}, "policy.max_concurrent_subagents"),
            ({"skills": ["search"]}, "search_api_key"),
            ({"system_prompt_path": "nowhere.md"}, "system_prompt_path"),
            ({"execution_cwd": str(workdir / "nowhere")}, "execution_cwd"),
            ({"provider": {"base_url": "ftp://x", "api_key": KEY}}, "provider.base_url"),
            ({"provider": {"base_url": f"http://u:{KEY}@/x y", "api_key": "k" * 9}}, "provider.base_url"),
            ({"provider": {"base_url": f"ftp://u:{KEY}@h/", "api_key": "k" * 9}}, "provider.base_url"),
            ({"provider": {"base_url": None, "api_key": KEY, "headers": {"Idempotency-Key": "x"}}}, "provider.headers"),
            ({"provider": {"base_url": None, "api_key": KEY, "headers": {"Content-Length": "3"}}}, "provider.headers"),
            ({"provider": {"base_url": None, "api_key": KEY, "headers": {"X": " x"}}}, "provider.headers"),
            ({"provider": {"base_url": f"http://{'a' * 64}.b/v1", "api_key": KEY}}, "provider.base_url"),
            ({"session_id": "a\n"}, "session_id"),
            ({"execution_cwd": "/" + "a" * 5000}, "execution_cwd"),
            ({"execution_cwd": "."}, "execution_cwd: must be an absolute path"),
            ({"execution_cwd": "", "execution_command": ["true"]}, "execution_cwd: must be an absolute path"),
            ({"system_prompt_path": "pipe"}, "system_prompt_path"),
            ({"execution_command": ["a" * 65_537]}, "execution_command: has more than 65536 characters"),
            ({"policy": {"exec_timeout": 2**64}}, "policy.exec_timeout"),
            ({"kernel_env": {"A=B": ""}}, "kernel_env.'A=B'"),
            ({"kernel_env": {"A": "\0"}}, "kernel_env.'A'"),
            ({"kernel_env": {"": "x"}}, "kernel_env.''"),
        ]
        os.mkfifo(workdir / "pipe")
        for changes, path in wrong:
            meta = {"ai.prime.rlm/runtime-v1": contract("http://127.0.0.1:1/v1", **changes)}
            error = await refused(client, "session/new", **params, _meta=meta)
            assert error.data["reason"].startswith(path)
            assert KEY not in str(error.data)
        meta = {"ai.prime.rlm/runtime-v1": contract("http://127.0.0.1:1/v1", policy={"new": 1}, newer={"a": 1})}
        answer = await client.ask("session/new", **params, _meta=meta)
        assert answer["_meta"]["ai.prime.rlm/contract-v1"]["ignored"] == ["policy.new", "newer"]
        error = await refused(client, "session/new", cwd=str(workdir), mcpServers=[{"type": "http"}], _meta=meta)
        assert "mcpServers" in error.data["reason"]
        error = await refused(client, "session/new", cwd=".", mcpServers=[], _meta=meta)
        assert error.data["faults"] == ["cwd: must be an absolute path"]


async def test_a_workspace_that_dies_ends_its_session_and_no_other(
    open_client, new_session, model_server, script, tmp_path
):
    model_server.by_task = {
        "dies": [script.calls("bash", {"command": "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); sleep 60"})],
        "lives": [script.says("Fine.")],
    }
    async with open_client() as client:
        dying, living = await new_session(client), await new_session(client)
        for _ in range(2):
            with pytest.raises(Refused) as caught:
                await client.prompt(dying, "dies")
            assert (caught.value.code, caught.value.data["kind"]) == (-32603, "workspace_lost")
        began = client.of("tool_call")[0]["toolCallId"]
        assert client.of("tool_call_update")[-1] == {
            "sessionUpdate": "tool_call_update",
            "toolCallId": began,
            "status": "failed",
        }
        assert (await client.prompt(living, "lives"))["stopReason"] == "end_turn"
        assert "ai.prime.rlm/session-v1" in (await client.ask("session/close", sessionId=dying))["_meta"]
    meta = json.loads((tmp_path / "home" / "sessions" / dying / "meta.json").read_text())
    assert meta["status"] == "workspace_lost"
    assert meta["message"]


async def test_a_workspace_that_cannot_be_had_is_told_and_may_be_there_the_next_time(
    open_client, new_session, model_server, script, workdir
):
    model_server.answers = [script.says("Fine.")]
    command = workdir / "worker"
    async with open_client() as client:
        session = await new_session(client, execution_command=[str(command)])
        with pytest.raises(Refused) as caught:
            await client.prompt(session, "go")
        assert caught.value.data["kind"] == "workspace_lost"
        command.write_text(f"#!/bin/sh\nexec {sys.executable} -m rlm_worker serve --stdio\n")
        command.chmod(0o700)
        assert (await client.prompt(session, "go"))["stopReason"] == "end_turn"


async def test_a_worker_at_a_name_that_no_host_can_have_harms_no_other_session(
    open_client, new_session, model_server, script
):
    model_server.answers = [script.says("Fine.")]
    async with open_client() as client:
        nowhere = {"host": "a" * 64, "port": 1, "token": "t" * 32}
        session = await new_session(client, execution_tcp=nowhere)
        with pytest.raises(Refused) as caught:
            await client.prompt(session, "go")
        assert caught.value.data["kind"] == "workspace_lost"
        assert "no host can have this name" in caught.value.data["details"]
        assert (await client.prompt(await new_session(client), "go"))["stopReason"] == "end_turn"


async def test_standard_input_that_is_no_client_is_one_clear_line():
    program = [sys.executable, "-m", "rlm_harness", "acp"]
    done = await trio.run_process(program, stdin=subprocess.DEVNULL, check=False, capture_stderr=True)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"stdin is /dev/null or a file, not a client" in done.stderr


async def test_the_short_name_is_used_in_complaints():
    rlm = "from rlm_harness.commands.acp import rlm; rlm()"
    done = await trio.run_process([sys.executable, "-c", rlm], check=False, capture_stderr=True)
    assert (done.returncode, done.stderr.partition(b" ")[0]) == (2, b"rlm:")


async def end(process):
    if process.returncode is None:
        process.kill()
    with trio.CancelScope(shield=True):
        await process.wait()
        await process.stdin.aclose()
        await process.stdout.aclose()


async def test_a_client_that_does_not_read_cannot_keep_the_program(workdir, model_server, script, tmp_path):
    answer = script.says("x")
    answer.data = answer.data.partition(b"0\r\n\r\n")[0]
    delta = b"data: " + json.dumps(script.delta(content="y" * 1000)).encode() + b"\n\n"
    answer.repeat = b"%x\r\n%s\r\n" % (len(delta), delta)
    model_server.answers = [answer]
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "rlm_harness", "acp", "--model", "m", "--base-url", model_server.base_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"RLM_HOME": str(tmp_path / "home")},
    )
    client = Client(process)
    try:
        with trio.CancelScope() as reading:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.receive)
                await client.ask("initialize", protocolVersion=1)
                session = (await client.ask("session/new", cwd=str(workdir), mcpServers=[]))["sessionId"]
                await client.send_prompt(session, "go")
                await client.shown("agent_message_chunk")
                reading.cancel()
        while waiting(process.stdout.fileno()) < 32 * 1024:  # noqa: ASYNC110  until the pipe is as good as full
            await trio.sleep(0.01)
        process.terminate()
        with trio.fail_after(20):
            assert await process.wait() == 0
    finally:
        await end(process)


@asynccontextmanager
async def unread(stderr=None):
    """The program, and a client that reads nothing."""
    program = [sys.executable, "-m", "rlm_harness", "acp"]
    process = await trio.lowlevel.open_process(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
    try:
        yield process
        with trio.fail_after(20):
            assert await process.wait() == 0
    finally:
        await end(process)


@pytest.mark.parametrize("how", ["SIGTERM", "end of input"])
async def test_errors_that_nobody_reads_do_not_keep_the_program_when_it_is_to_end(how):
    async with unread() as process:
        await process.stdin.send_all(b"garbage\n")
        size = len(await process.stdout.receive_some(4096))
        # They do not fit into the pipe, but are not so many that the client would be given up for that.
        await process.stdin.send_all(b"garbage\n" * (65536 // size + 50))
        while waiting(process.stdout.fileno()) < 48 * 1024:  # noqa: ASYNC110
            await trio.sleep(0.01)
        if how == "SIGTERM":
            process.terminate()
        else:
            await process.stdin.aclose()


async def test_a_client_that_floods_and_reads_nothing_is_given_up(tmp_path):
    with (tmp_path / "log").open("w") as log:
        async with unread(stderr=log) as process:
            with suppress(trio.BrokenResourceError):
                await process.stdin.send_all(b"garbage\n" * 100_000)
    assert "the client has left 256 errors unread" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"id": 1, "method": "initialize", "params": {"protocolVersion": 1}}', b"protocolVersion"),
        (b"garbage", b"-32700"),
    ],
)
async def test_what_was_asked_is_answered_also_when_the_client_has_closed_its_side(line, told):
    async with unread() as process:
        await process.stdin.send_all((line + b"\n") * 200)
        await process.stdin.aclose()
        assert b"".join([data async for data in process.stdout]).count(told) == 200


async def test_a_session_can_be_closed_whatever_is_under_way(open_client, new_session):
    async with open_client() as client:
        sessions = [await new_session(client, execution_command=["sleep", "600"]) for _ in range(9)]
        prompts = [await client.send_prompt(session, "go") for session in sessions for _ in range(32)]
        error = await refused(client, "session/new", cwd="/", mcpServers=[])
        assert (error.code, str(error)) == (-32600, "there are 256 requests without an answer already")
        for session in sessions:
            await client.ask("session/close", sessionId=session)
        answers = []
        for number in prompts:
            await client.until(lambda number=number: number in client.answers)
            answers.append(client.answers[number])
        cancelled = sum(answer.get("result", {}).get("stopReason") == "cancelled" for answer in answers)
        refusals = [answer["error"]["message"] for answer in answers if "error" in answer]
        assert cancelled + len(refusals) == len(prompts)
        assert set(refusals) == {str(error)}
        assert 0 <= 256 - cancelled <= 1  # an answer may be here before it counts as sent


@pytest.mark.parametrize("how", ["SIGTERM", "end of input"])
async def test_the_program_ends_at_once_with_all_it_runs(open_client, new_session, model_server, script, how):
    model_server.answers = [script.calls("bash", {"command": "echo pids $$ $PPID; sleep 600"})]
    async with open_client() as client:
        await client.send_prompt(await new_session(client), "go")
        update = await client.shown("tool_call_update")
        pids = update["content"][0]["content"]["text"].split()[1:]
        if how == "SIGTERM":
            os.kill(client.process.pid, signal.SIGTERM)
        else:
            await client.process.stdin.aclose()
        with trio.fail_after(20):
            await client.ended.wait()
        assert await client.process.wait() == 0
    for pid in map(int, pids):
        await ended(pid)
