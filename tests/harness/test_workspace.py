"""The fixed API, against a real worker in its own process."""

import asyncio

import pytest
import trio

import rlm_harness
from rlm_harness.workspace import local_worker_url
from rlm_wire.errors import CallError, SessionLost, TransportError, WireError


@pytest.fixture
async def workspace(tmp_path, worker_url):
    async with rlm_harness.Workspace.connect(worker_url, cwd=str(tmp_path)) as workspace:
        yield workspace


@pytest.fixture
async def agent(workspace):
    async with workspace.agent() as agent:
        yield agent


def test_without_trio_a_workspace_says_that_it_needs_it():
    async def connect():
        async with rlm_harness.Workspace.connect(local_worker_url()):
            pytest.fail("connected")

    with pytest.raises(RuntimeError, match="Workspace needs Trio"):
        asyncio.run(connect())


async def test_a_workspace_says_where_it_is(workspace, tmp_path):
    assert workspace.info.cwd == str(tmp_path)
    assert "rlm-worker" in workspace.info.worker


async def test_a_command_runs_in_the_workspace_with_its_environment(tmp_path):
    env = {"GREETING": "grüezi"}
    async with (
        rlm_harness.Workspace.connect(local_worker_url(), cwd=str(tmp_path), env=env) as workspace,
        workspace.agent() as agent,
    ):
        result = await agent.bash('pwd; echo "$GREETING $MORE"', env={"MORE": "more"}, timeout=60)
    assert result.exit_code == 0
    assert result.output.text == f"{tmp_path}\ngrüezi more\n"


async def test_output_arrives_while_the_command_runs_and_never_cuts_a_character(agent, tmp_path):
    arrived = []

    def on_output(text):
        arrived.append(text)
        if "äö" in "".join(arrived):
            (tmp_path / "go").touch()

    command = (
        r"printf '\303'; sleep 0.1; printf '\244\303'; sleep 0.1; printf '\266'; "
        "until [ -e go ]; do sleep 0.02; done; echo done"
    )
    result = await agent.bash(command, timeout=30, on_output=on_output)
    assert "".join(arrived) == result.output.text == "äödone\n"
    assert all("\ufffd" not in text for text in arrived)


async def test_an_async_watcher_slows_the_command_down_instead_of_being_flooded(agent):
    seen = 0

    async def watch(text):
        nonlocal seen
        await trio.lowlevel.checkpoint()
        seen += len(text)

    result = await agent.bash("yes | head -c 3000000", on_output=watch)
    assert seen == result.output.bytes == 3_000_000
    assert result.output.omitted > 0


async def test_a_cell_keeps_its_variables_for_the_next(agent):
    lines = []
    first = await agent.ipython("x = 20; print('hi')", timeout=60, on_output=lines.append)
    second = await agent.ipython("x + 1")
    assert (first.status, first.output.text, "".join(lines)) == ("ok", "hi\n", "hi\n")
    assert second.result == "21"


async def test_an_edit_and_its_refusal(agent, tmp_path):
    (tmp_path / "a.py").write_text("one\nold\n")
    result = await agent.edit("a.py", "old", "new")
    assert (result.line, (tmp_path / "a.py").read_text()) == (2, "one\nnew\n")
    with pytest.raises(CallError) as caught:
        await agent.edit("a.py", "old", "new")
    assert caught.value.code == "failed_precondition"


async def test_a_page_is_fetched_from_within_the_workspace(agent, model_server):
    result = await agent.fetch(model_server.base_url)
    assert result.url == model_server.base_url


async def test_cancelling_a_command_returns_when_it_has_stopped(agent, tmp_path):
    started = trio.Event()
    async with trio.open_nursery() as nursery:

        async def run():
            await agent.bash("sleep 1000 & echo $! > pid; echo up; wait", on_output=lambda _: started.set())

        nursery.start_soon(run)
        await started.wait()
        nursery.cancel_scope.cancel()
    pid = (tmp_path / "pid").read_text().strip()
    assert (await agent.bash(f"kill -0 {pid}")).exit_code == 1


async def test_the_open_call_keeps_the_partial_result(agent):
    async with agent.open_bash("echo up; sleep 1000") as call:
        async for chunk in call:
            assert chunk.data == b"up\n"
            break
        call.cancel("enough")
        result = await call.result()
    assert (result.cancelled, result.exit_code, result.output.text) == (True, None, "up\n")


async def test_an_interrupted_cell_keeps_its_output_and_its_kernel(agent):
    await agent.ipython("kept = 1")
    async with agent.open_ipython("print('up', flush=True)\nimport time\ntime.sleep(1000)") as call:
        async for _ in call:
            break
        call.cancel()
        result = await call.result()
    assert (result.status, result.output.text) == ("interrupted", "up\n")
    assert (await agent.ipython("kept")).result == "1"


async def test_leaving_an_agent_ends_what_it_runs(workspace, tmp_path):
    async with workspace.agent("first") as agent, trio.open_nursery() as nursery:
        up = trio.Event()

        async def run():
            await agent.bash("echo $$ > pid; echo up; sleep 1000", on_output=lambda _: up.set())

        nursery.start_soon(run)
        await up.wait()
        nursery.cancel_scope.cancel()
    assert agent.closed is not None
    async with workspace.agent("second") as agent:
        assert (await agent.bash(f"kill -0 {(tmp_path / 'pid').read_text().strip()}")).exit_code == 1


async def test_a_directory_that_is_not_there_is_named(tmp_path, worker_url):
    with pytest.raises(CallError, match="nowhere"):
        async with rlm_harness.Workspace.connect(worker_url, cwd=str(tmp_path / "nowhere")):
            pass


async def test_a_worker_that_does_not_start_is_an_error_with_its_words():
    with pytest.raises(WireError, match=r"exit status 3; its stderr: cannot"):
        async with rlm_harness.Workspace.connect("stdio:sh -c 'echo cannot >&2; read line; exit 3'"):
            pass


async def test_a_url_of_no_known_kind_is_an_error():
    with pytest.raises(TransportError):
        async with rlm_harness.Workspace.connect("carrier-pigeon:home"):
            pass


async def test_a_worker_that_dies_fails_the_calls_and_leaving_goes_on():
    connection = rlm_harness.Workspace.connect(local_worker_url())
    async with connection as workspace, workspace.agent() as agent:
        with pytest.raises(SessionLost):
            await agent.bash(f"kill -9 {workspace.info.pid}; sleep 1000")
        with pytest.raises(SessionLost):
            await agent.edit("a", "b", "c")


async def test_abandoning_fails_every_open_call_at_once(workspace):
    async with workspace.agent() as agent, agent.open_bash("echo up; sleep 1000") as call:
        async for _ in call:
            break
        workspace.abandon()
        with pytest.raises(SessionLost, match="given up"):
            await call.result()
