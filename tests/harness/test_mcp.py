"""Tools of MCP servers in cells: real servers over stdio and streamable HTTP, that fail, die, and come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

import rlm_wire
from rlm_harness import AgentTools, Workspace
from rlm_harness.mcp_servers import link
from rlm_harness.mcp_servers.configuration import HttpServer, McpServer, StdioServer
from rlm_harness.mcp_servers.servers import open_mcp_servers
from rlm_harness.secrets import Secret, UserError
from rlm_harness.skills.table import SkillTable
from rlm_wire.methods.skills import RemoteSkill

SERVER = str(Path(__file__).parent / "mcp_server.py")
SECRET = "sesame-0123456789"


def stdio(name: str = "test", *, program: str = SERVER, **env: str) -> StdioServer:
    return StdioServer(name, sys.executable, [program, "stdio"], {key: Secret(value) for key, value in env.items()})


class HttpProcess:
    """The server over HTTP, to be killed and started again on the same port."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    @property
    def server(self) -> HttpServer:
        return HttpServer("test", f"http://127.0.0.1:{self.port}/mcp", {"X-Secret": Secret(SECRET)})

    def start(self) -> None:
        command = [sys.executable, SERVER, "http", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def http() -> Iterator[HttpProcess]:
    process = HttpProcess()
    yield process
    process.kill()


@pytest.fixture(scope="module")
def lasting() -> Iterator[HttpProcess]:
    """For tests that do not end it."""
    process = HttpProcess()
    yield process
    process.kill()


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> McpServer:
    if request.param == "stdio":
        return stdio(TEST_SECRET=SECRET)
    served: HttpServer = request.getfixturevalue("lasting").server
    return served


@asynccontextmanager
async def cells(url: str, cwd: Path, *servers: McpServer) -> AsyncIterator[AgentTools]:
    """An agent whose cells have the tools of `servers`."""
    service, table = rlm_wire.Service(), SkillTable([])
    table.register(service)
    async with (
        open_mcp_servers(servers, table),
        Workspace.connect(url, cwd=str(cwd), service=service) as workspace,
        workspace.agent(skills=table.skills()) as agent,
    ):
        yield agent


async def value(agent: AgentTools, code: str) -> str:
    """What a cell that must succeed shows as its last expression, or prints."""
    cell = await agent.ipython(code, timeout=60)
    assert cell.status == "ok", (cell.error, cell.output.text, cell.notices)
    return cell.result or cell.output.text


async def failure(agent: AgentTools, code: str) -> str:
    cell = await agent.ipython(code, timeout=60)
    assert cell.error is not None, cell
    return f"{cell.error.name}: {cell.error.message}"


async def test_each_tool_is_a_function_in_cells(worker_url: str, tmp_path: Path, server: McpServer) -> None:
    async with cells(worker_url, tmp_path, server) as agent:
        assert await value(agent, "await test_add(1), await test_add.run(y=5, x=1)") == "('3', '6')"
        assert await value(agent, "test_add(1, 3)") == "'4'"
        assert await value(agent, "import test_add as t\nt(1, unit='mm')") == "'3mm'"
        assert await value(agent, "import inspect; inspect.signature(test_add)") == (
            "<Signature (x: int, y: int = 2, unit: Literal['mm', 'cm'] | None = None) -> str>"
        )
        assert "Add two numbers.\n\ny is 2 unless given." in await value(agent, "print(test_add.__doc__)")
        assert await value(agent, "test_picture()") == "'[image/png, 6 bytes]'"
        assert "TypeError: missing a required argument: 'x'" in await failure(agent, "test_add()")
        assert "internal: Error executing tool add" in await failure(agent, "await test_add('one')")
        assert "Error: internal: Error executing tool fail: because" in await failure(agent, "test_fail('because')")
        cell = await agent.ipython("[test_count() for _ in range(3)]", timeout=60)
        assert cell.result == "['1', '2', '3']"  # in one process: the session is kept
        assert cell.skill_calls == {"test_count": 3}


async def test_credentials_reach_the_server_and_not_the_workspace(
    worker_url: str, tmp_path: Path, server: McpServer
) -> None:
    os.environ["TEST_UNRELATED"] = "1"
    async with cells(worker_url, tmp_path, server) as agent:
        asked = "test_secret()" if isinstance(server, StdioServer) else "test_headers()"
        assert await value(agent, asked) == repr(SECRET)
        if isinstance(server, StdioServer):
            names = (await value(agent, "test_environment()")).strip("'").split()
            assert {"TEST_SECRET", "PATH"} <= set(names)
            assert "TEST_UNRELATED" not in names
        look = (
            "import os\nseen = repr(dict(os.environ)) + ''.join(repr(vars(m)) for m in [test_add, test_add.run, rlm])\n"
            f"{SECRET[:6]!r} + {SECRET[6:]!r} in seen"
        )
        assert await value(agent, look) == "False"
    del os.environ["TEST_UNRELATED"]
    assert SECRET not in repr(server)


async def test_a_server_that_dies_is_unavailable_and_started_anew(worker_url: str, tmp_path: Path) -> None:
    async with cells(worker_url, tmp_path, stdio()) as agent:
        assert await value(agent, "test_count(), test_count()") == "('1', '2')"
        message = "Error: unavailable: the MCP server 'test' is unavailable: it has ended"
        assert message in await failure(agent, "await test_die()")
        assert await value(agent, "test_count()") == "'1'"


async def test_an_http_server_is_reached_again_once_it_is_back(
    worker_url: str, tmp_path: Path, http: HttpProcess
) -> None:
    async with cells(worker_url, tmp_path, http.server) as agent:
        assert await value(agent, "test_count(), test_count()") == "('1', '2')"
        message = "unavailable: the MCP server 'test' is unavailable: "
        assert message in await failure(agent, "await test_die()")
        assert message + "it could not be reached" in await failure(agent, "test_count()")
        http.kill()
        http.start()
        assert await value(agent, "test_count()") == "'1'"
        http.kill()
        http.start()  # between two calls: it does not know the session, and nothing was done
        assert await value(agent, "test_count()") == "'1'"


async def test_killed_during_a_call_a_server_is_unavailable(worker_url: str, tmp_path: Path, http: HttpProcess) -> None:
    os.mkfifo(tmp_path / "begun")
    async with cells(worker_url, tmp_path, http.server) as agent:
        code = f"test_stall({str(tmp_path / 'begun')!r}, '/dev/null')"
        async with agent.open_ipython(code, timeout=60) as call:
            await heard(tmp_path / "begun")
            http.kill()
            cell = await call.result()
        assert cell.error is not None
        assert cell.error.message.startswith("unavailable: the MCP server 'test' is unavailable: ")


async def heard(pipe: Path) -> None:
    """Wait until somebody has written to the named pipe."""
    assert await trio.to_thread.run_sync(pipe.read_text, abandon_on_cancel=True) == "x"


async def test_a_server_is_told_when_a_cell_does_not_wait_any_more(
    worker_url: str, tmp_path: Path, server: McpServer
) -> None:
    for name in ("begun", "ended"):
        os.mkfifo(tmp_path / name)
    async with cells(worker_url, tmp_path, server) as agent:
        code = f"test_stall({str(tmp_path / 'begun')!r}, {str(tmp_path / 'ended')!r})"
        async with agent.open_ipython(code, timeout=60) as call:
            await heard(tmp_path / "begun")
            assert await agent.interrupt()
            await heard(tmp_path / "ended")
            assert (await call.result()).status == "interrupted"
        assert await value(agent, "test_add(1)") == "'3'"


async def test_a_tool_that_hangs_does_not_outlast_the_timeout_of_the_cell(
    worker_url: str, tmp_path: Path, server: McpServer
) -> None:
    for name in ("begun", "ended"):
        os.mkfifo(tmp_path / name)
    async with cells(worker_url, tmp_path, server) as agent:
        code = f"kept = 1\nawait test_stall({str(tmp_path / 'begun')!r}, {str(tmp_path / 'ended')!r})"
        with trio.fail_after(30):
            async with agent.open_ipython(code, timeout=0.5) as call:
                await heard(tmp_path / "begun")
                await heard(tmp_path / "ended")
                cell = await call.result()
        assert cell.status == "timed_out", cell
        assert cell.notices == [
            "The cell ran longer than 0.5 s and was interrupted; the kernel and its variables live on."
        ]
        assert await value(agent, "test_add(kept)") == "'3'"


async def test_calls_of_one_session_run_side_by_side(worker_url: str, tmp_path: Path, server: McpServer) -> None:
    os.mkfifo(tmp_path / "begun")
    async with cells(worker_url, tmp_path, server) as agent:
        code = (
            "import asyncio\nfrom pathlib import Path\n"
            f"stalled = asyncio.create_task(test_stall({str(tmp_path / 'begun')!r}, '/dev/null'))\n"
            f"await asyncio.to_thread(Path({str(tmp_path / 'begun')!r}).read_text)\n"
            "done = [await test_add(n) for n in range(5)]\n"
            "stalled.cancel()\n' '.join(done)"
        )
        assert await value(agent, code) == repr(" ".join(str(n + 2) for n in range(5)))


async def test_what_a_server_prints_beside_the_protocol_does_no_harm(worker_url: str, tmp_path: Path) -> None:
    """B16, B18: lines on stdout that are no messages, and more on stderr than a pipe holds."""
    program = tmp_path / "noisy.py"
    noise = "import sys\nprint('hello', flush=True)\nsys.stderr.write('x' * 1_000_000)\nsys.stderr.flush()\n"
    program.write_text(noise + f"sys.argv[0] = {SERVER!r}\nexec(open({SERVER!r}).read())\n")
    async with cells(worker_url, tmp_path, stdio(program=str(program))) as agent:
        assert await value(agent, "test_add(1)") == "'3'"


@asynccontextmanager
async def opened(*servers: McpServer) -> AsyncIterator[SkillTable]:
    table = SkillTable([])
    async with open_mcp_servers(servers, table):
        yield table


def test_a_server_that_went_before_it_was_spoken_to_has_ended() -> None:
    broken = ExceptionGroup("", [ExceptionGroup("", [anyio.BrokenResourceError()])])
    assert link._reason(broken) == "it has ended"


async def test_a_server_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, lasting: HttpProcess) -> None:
    program = tmp_path / "broken.py"
    program.write_text("import os, sys\nprint('no', os.environ['KEY'], file=sys.stderr)\nsys.exit(3)\n")
    closed = HttpServer("shut", "http://127.0.0.1:1/mcp", {"X-Key": Secret(SECRET)})
    other = HttpServer("page", f"http://127.0.0.1:{lasting.port}/other", {})
    for server, reason in [
        (
            StdioServer("gone", "/no/such/program", [], {}),
            "'gone' cannot be used: cannot start it: command not found: /no/such/program",
        ),
        (
            StdioServer("astray", sys.executable, [SERVER, "stdio"], {}, cwd="/no/such/place"),
            "'astray' cannot be used: cannot start it: No such file or directory: /no/such/place",
        ),
        (
            StdioServer("broken", sys.executable, [str(program)], {"KEY": Secret(SECRET)}),
            r"'broken' cannot be used: it has ended; it said: no \[secret\]",
        ),
        (closed, "'shut' cannot be used: it could not be reached"),
        (other, r"'page' cannot be used: it answered with HTTP 404: is the url right\?"),
    ]:
        with pytest.raises(UserError, match=reason) as caught:
            async with opened(stdio(), server):
                pass
        assert SECRET not in str(caught.value)


async def test_a_server_that_says_nothing_is_given_up(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    os.mkfifo(tmp_path / "begun")
    silent = StdioServer("silent", "sh", ["-c", f"printf x > {tmp_path / 'begun'}; exec sleep 1000"], {})

    async def wait_for_nothing() -> None:
        await heard(tmp_path / "begun")
        mock_clock.jump(link.CONNECT_TIMEOUT)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_nothing)
        with pytest.raises(UserError, match="'silent' cannot be used: it did not answer within 30 s"):
            async with opened(silent):
                pass


async def test_names_that_clash_are_refused(lasting: HttpProcess) -> None:
    table = SkillTable()
    table.add(RemoteSkill("test_add"), echo, "the first")
    reason = "the tool 'add' of the MCP server 'test' and the first would both be called 'test_add' in cells"
    with pytest.raises(UserError, match=reason):
        async with open_mcp_servers([lasting.server], table):
            pass


async def echo(arguments: dict[str, Any]) -> str:
    return repr(arguments)


async def test_leaving_ends_the_server_also_when_cancelled(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with opened(stdio()) as table:
            assert len(table.skills().remote) == 9
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught  # the module's fixture looks for processes


async def test_a_stubborn_server_is_killed_with_its_children(tmp_path: Path) -> None:
    """B12: it ignores the end of its stdin, and SIGTERM."""
    program = tmp_path / "stubborn.py"
    program.write_text(
        f"import signal, subprocess, sys\nsignal.signal({int(signal.SIGTERM)}, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, {SERVER!r}, 'stdio'])\nwhile True: signal.pause()\n"
    )
    async with opened(StdioServer("stubborn", sys.executable, [str(program)], {})) as table:
        assert table.skills().remote
