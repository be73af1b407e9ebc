"""The MCP servers of a harness: one kept session each, renewed when it is lost, and their tools as skills of cells.

Importing this takes most of a second, and raises UserError where the SDK is not installed.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from rlm_harness.mcp_servers.configuration import McpServer
from rlm_harness.mcp_servers.schemas import parameters_untrusted
from rlm_harness.secrets import UserError
from rlm_harness.skills.names import identifier
from rlm_harness.skills.table import SKILLS_LIMIT, SkillTable
from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError
from rlm_wire.methods.skills import RemoteSkill

try:
    from mcp import types

    from rlm_harness.mcp_servers.link import Link, LinkLost
except ImportError as error:
    raise UserError(f"MCP servers need the mcp extra, pip install 'rlm-wire[mcp]': {error}") from None

STARTING_LIMIT: Final = 8
"""Servers that are started at the same time: each may be a large program, and other sessions want the machine, too."""


@asynccontextmanager
async def open_mcp_servers(servers: Sequence[McpServer], table: SkillTable) -> AsyncIterator[None]:
    """Start or reach all `servers`, have their tools in `table`, and end the sessions when the block is left.

    Raises UserError, which names the server, if one cannot be used or a name of its tools is taken. Leaving, also when
    cancelled, waits until child processes have ended, `link.CLOSE_TIMEOUT` at most.
    """
    with one_error():
        async with trio.open_nursery() as nursery:
            kept = [KeptServer(server, nursery) for server in servers]
            try:
                found = await _discover(kept)
                for server in kept:
                    for tool in found[server]:
                        what = f"the tool {tool.name!r} of the MCP server {server.name!r}"
                        table.add(_skill(server.name, tool), partial(server.call, tool.name), what)
                yield
            finally:
                for server in kept:
                    server.close()


async def _discover(servers: Sequence[KeptServer]) -> dict[KeptServer, list[types.Tool]]:
    """The tools of each, STARTING_LIMIT of them asked at the same time."""
    found: dict[KeptServer, list[types.Tool]] = {}
    starting = trio.Semaphore(STARTING_LIMIT)

    async def ask(server: KeptServer) -> None:
        async with starting:
            found[server] = await server.tools()

    with one_error():
        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(ask, server)
    return found


class KeptServer:
    """One server, and its session, if there is one at the moment."""

    def __init__(self, server: McpServer, nursery: trio.Nursery) -> None:
        self.name = server.name
        self._server = server
        self._nursery = nursery
        self._link: Link | None = None
        self._connecting = trio.Lock()

    async def tools(self) -> list[types.Tool]:
        """Raises UserError if the server cannot be used."""
        try:
            return await (await self._linked()).tools(SKILLS_LIMIT)
        except LinkLost as lost:
            reason = str(lost)
        except CallError as error:
            reason = error.message
        raise UserError(f"the MCP server {self.name!r} cannot be used: {reason}")

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """What the tool gives, as text. A lost session is renewed first.

        Raises CallError: `internal` with the tool's own words if it failed, `invalid_argument`, `deadline_exceeded`, or
        `unavailable`. Cancellation: the server is told.
        """
        try:
            result = await self._call(tool, arguments)
        except LinkLost as lost:
            message = f"the MCP server {self.name!r} is unavailable: {lost}"
            raise CallError("unavailable", message, retryable=True) from None
        text = "\n".join(map(_text, result.content))
        if result.isError:
            raise CallError("internal", text or f"the tool {tool!r} failed without a word")
        return text

    async def _call(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        try:
            return await (await self._linked()).call(tool, arguments)
        except LinkLost as lost:
            if not lost.unsent:
                raise
        return await (await self._linked()).call(tool, arguments)  # nothing was done: a new session's turn

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    async def _linked(self) -> Link:
        """The session, a new one if need be. Raises LinkLost. Cancellation: gives up what is not connected yet."""
        async with self._connecting:
            if self._link is None or self._link.ended:
                link = Link(self._server)
                with one_error():
                    await self._nursery.start(link.run)
                self._link = link
            return self._link


def _skill(server: str, tool: types.Tool) -> RemoteSkill:
    parameters, others = parameters_untrusted(tool.inputSchema)
    description = inspect.cleandoc(tool.description or tool.title or "")
    return RemoteSkill(identifier(server, tool.name), description, parameters, others)


def _text(block: types.ContentBlock) -> str:
    """A block of a result as text; pictures and sounds are named only."""
    match block.type:
        case "text":
            return block.text
        case "resource":
            resource = block.resource
            return getattr(resource, "text", None) or f"[{resource.mimeType or 'binary'} of {resource.uri}]"
        case "resource_link":
            return f"{block.name}: {block.uri}"
        case "image" | "audio":
            return f"[{block.mimeType}, {len(block.data) * 3 // 4} bytes]"
