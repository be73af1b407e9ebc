"""MCP servers that break the rules: what each costs is one call with a clear error, not the session nor the memory."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rlm_harness.mcp_servers import link, servers
from rlm_harness.mcp_servers.configuration import HttpServer, StdioServer
from rlm_harness.mcp_servers.servers import KeptServer, open_mcp_servers
from rlm_harness.secrets import Secret, UserError
from rlm_harness.skills.table import SkillTable
from rlm_wire.errors import CallError

HERE = Path(__file__).parent


def rude(behaviour: str = "") -> StdioServer:
    return StdioServer("rude", sys.executable, [str(HERE / "mcp_rude_server.py"), behaviour], {})


@asynccontextmanager
async def kept(server: StdioServer) -> AsyncIterator[KeptServer]:
    async with trio.open_nursery() as nursery:
        one = KeptServer(server, nursery)
        try:
            await one.tools()
            yield one
        finally:
            one.close()


async def failure(server: KeptServer, tool: str, arguments: dict[str, Any]) -> str:
    with pytest.raises(CallError) as caught:
        await server.call(tool, arguments)
    return f"{caught.value.code}: {caught.value.message}"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("large", "resource_exhausted: the MCP server 'rude' sent a message of more than 32 MiB"),
        ("misshapen", "internal: the MCP server 'rude' breaks a rule: "),
    ],
)
async def test_a_bad_answer_costs_one_call_and_not_the_session(how: str, reason: str) -> None:
    async with kept(rude()) as server:
        assert (await failure(server, "rude", {"how": how})).startswith(reason)
        assert await server.call("count", {}) == "2"


@pytest.mark.parametrize("how", ["half", "mute", "killed"])
async def test_a_server_that_goes_in_a_call_is_unavailable_and_started_anew(how: str) -> None:
    async with kept(rude()) as server:
        assert await failure(server, "rude", {"how": how}) == (
            "unavailable: the MCP server 'rude' is unavailable: it has ended"
        )
        assert await server.call("count", {}) == "1"


async def test_a_server_that_has_closed_its_stdin_is_unavailable_and_started_anew() -> None:
    async with kept(rude()) as server:
        assert await server.call("rude", {"how": "deaf"}) == "what?"
        assert await failure(server, "count", {}) == "unavailable: the MCP server 'rude' is unavailable: it has ended"
        assert await server.call("count", {}) == "1"


async def test_an_endless_line_fails_the_call_at_once_and_is_never_kept(tmp_path: Path) -> None:
    """The session is busy with it from then on; closing it ends the server all the same, and others are not harmed."""
    async with kept(rude()) as server, kept(rude()) as other:
        assert await failure(server, "rude", {"how": "endless"}) == (
            "resource_exhausted: the MCP server 'rude' sent a message of more than 32 MiB"
        )
        assert await other.call("count", {}) == "1"


async def test_what_is_no_message_is_passed_over() -> None:
    async with kept(rude()) as server:
        assert await server.call("rude", {"how": "garbage"}) == "polite"
        assert await server.call("count", {}) == "2"


async def test_a_server_that_never_stops_talking_leaves_others_their_turn() -> None:
    async with kept(rude()) as server:
        assert await server.call("rude", {"how": "chatty"}) == "on and on"
        with trio.fail_after(60):  # while each line it has said was taken in one turn, these took minutes
            for _ in range(20_000):
                await trio.lowlevel.checkpoint()
            assert await server.call("count", {}) == "2"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("large", "it sent a message of more than 32 MiB"),
        ("endless", "it sent a message of more than 32 MiB"),
        ("half", "it has ended"),
        ("mute", "it has ended"),
        ("killed", "it has ended"),
    ],
)
async def test_a_rude_greeting_is_refused(behaviour: str, reason: str) -> None:
    with trio.fail_after(60), pytest.raises(UserError, match=f"^the MCP server 'rude' cannot be used: {reason}$"):
        async with open_mcp_servers([rude(behaviour)], SkillTable()):
            pass


async def test_only_some_servers_are_started_at_the_same_time() -> None:
    class Starting(KeptServer):
        now = most = 0

        async def tools(self) -> list[Any]:
            Starting.now += 1
            Starting.most = max(Starting.most, Starting.now)
            await trio.testing.wait_all_tasks_blocked()
            Starting.now -= 1
            return []

    async with trio.open_nursery() as nursery:
        several = [Starting(rude(), nursery) for _ in range(20)]
        assert set(await servers._discover(several)) == set(several)
    assert Starting.most == 8


async def test_an_answer_as_large_as_may_be_comes_whole() -> None:
    program = f"import sys; sys.path.insert(0, {str(HERE)!r}); import mcp_rude_server as server; "
    program += f"server.LINE = {(32 << 20) - 200}; server.main()"
    async with kept(StdioServer("large", sys.executable, ["-c", program], {})) as server:
        text = await server.call("rude", {"how": "large"})
    assert text == "x" * ((32 << 20) - 200)


async def test_a_call_without_an_answer_is_given_up_and_the_server_told(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    for name in ("begun", "ended"):
        os.mkfifo(tmp_path / name)
    async with kept(StdioServer("test", sys.executable, [str(HERE / "mcp_server.py"), "stdio"], {})) as server:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def wait_for_nothing() -> None:
                await trio.to_thread.run_sync((tmp_path / "begun").read_text)
                mock_clock.jump(link.CALL_TIMEOUT)
                await trio.to_thread.run_sync((tmp_path / "ended").read_text)

            arguments = {name: str(tmp_path / name) for name in ("begun", "ended")}
            assert await failure(server, "stall", arguments) == (
                "deadline_exceeded: the MCP server 'test' did not answer within 300 s"
            )
        assert await server.call("add", {"x": 1}) == "3"


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("text/html", b"<html>", r"it answered with text/html, not with a message of MCP: is the url right\?"),
        (
            "application/json",
            b'{"jsonrpc": "2.0", "id": 0, "error": {"code": -32000, "message": "not for sesame-0123"}}',
            r"it refused: not for \[secret\]",
        ),
    ],
)
async def test_over_http_who_refuses_is_told_at_once_and_without_secrets(kind: str, body: bytes, reason: str) -> None:
    async def refuse(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            await stream.send_all(head.encode() + body)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, refuse, [listener])
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        with pytest.raises(UserError, match=f"'rude' cannot be used: {reason}$"):
            async with open_mcp_servers([HttpServer("rude", url, {"X-Key": Secret("sesame-0123")})], SkillTable()):
                pass
        nursery.cancel_scope.cancel()


async def test_over_http_who_never_answers_is_given_up(mock_clock: trio.testing.MockClock) -> None:
    async def say_nothing(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        mock_clock.jump(link.CONNECT_TIMEOUT)
        async for _ in stream:
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, say_nothing, [listener])
        server = HttpServer("silent", f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp", {})
        with pytest.raises(UserError, match="'silent' cannot be used: it did not answer within 30 s"):
            async with open_mcp_servers([server], SkillTable()):
                pass
        nursery.cancel_scope.cancel()
