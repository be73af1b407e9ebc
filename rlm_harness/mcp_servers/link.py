"""One session with one MCP server, from its start to its end: `Link.run` lives as long as it does.

The SDK's client is written for anyio, and so runs under Trio; its contexts must be left by the task that entered them,
hence a task for each link. What the SDK does not do is done here: whoever waits for an answer is told when the server
is gone, and a server is told when nobody waits any more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import anyio
import httpx
import trio
from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamable_http_client

from rlm_harness.mcp_servers.answers import TOO_LARGE, AnswersTransport, describe
from rlm_harness.mcp_servers.configuration import HttpServer, McpServer, StdioServer
from rlm_harness.mcp_servers.stdio import STREAM_ENDED, last_words, open_stdio, start_server
from rlm_harness.secrets import redact_all
from rlm_wire import __version__
from rlm_wire.errors import CallError, LaunchError, TransportError
from rlm_wire.transports.children import ChildStream

CLIENT: Final = types.Implementation(name="rlm-harness", version=__version__)

_NOT_PACKED: Final = {"Accept-Encoding": "identity"}

logging.getLogger("mcp").addHandler(logging.NullHandler())  # who wants to see what it says has a handler

CONNECT_TIMEOUT: Final = 30.0
"""Seconds until a server must have answered first: some install themselves when they are started."""

CALL_TIMEOUT: Final = 300.0
"""Seconds for one tool call. Cells do not pay for the time in which they wait, so something else must end it."""

READ_TIMEOUT: Final = CALL_TIMEOUT + 30.0
"""Seconds of silence on an HTTP connection. The SDK sends nothing more until a notification has been taken."""

CLOSE_TIMEOUT: Final = 8.0
"""Seconds to end a server in order: its stdin is closed, after 2 s it gets SIGTERM, and after 2 s more it is killed."""

CANCEL_TIMEOUT: Final = 1.0
"""Seconds to tell a server that nobody waits for its answer any more."""

SESSION_TERMINATED: Final = 32600
"""What the SDK makes of HTTP 404: the server does not know the session (any more), so the call was not executed."""


class LinkLost(Exception):
    """The session is over, or never began; the text says why. `unsent`: the call was certainly not executed."""

    def __init__(self, why: str, *, unsent: bool = False) -> None:
        super().__init__(why)
        self.unsent = unsent


class _Session(ClientSession):
    """Tells the server when the one who waits for an answer has been cancelled, unless `silent`."""

    silent = False

    async def send_request(self, *args: Any, **options: Any) -> Any:
        number = self._request_id
        try:
            return await super().send_request(*args, **options)
        except trio.Cancelled:
            if not self.silent:
                await self._withdraw(number)
            raise

    async def _withdraw(self, number: int) -> None:
        params = types.CancelledNotificationParams(requestId=number, reason="nobody waits for it any more")
        notification = types.ClientNotification(types.CancelledNotification(params=params))
        with trio.move_on_after(CANCEL_TIMEOUT, shield=True), suppress(*STREAM_ENDED):
            await self.send_notification(notification)


class Link:
    """To be run by a task of its own: `await nursery.start(link.run)`."""

    def __init__(self, server: McpServer) -> None:
        self.ended = False
        self._server = server
        self._why = ""
        self._leaving = trio.Event()
        self._life = trio.CancelScope()
        self._waiting: set[trio.CancelScope] = set()
        self._child: ChildStream | None = None
        self._session: _Session | None = None

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Connect, and keep the session until `close` or until the server is gone. Raises LinkLost before it began.

        Cancellation: before it began, ends it; from then on it waits for `close`, which is bounded.
        """
        self._life.deadline = trio.current_time() + CONNECT_TIMEOUT
        try:
            with self._life:
                async with self._transport() as (read, write), trio.open_nursery() as nursery:
                    to_session, from_server = anyio.create_memory_object_stream[Any](0)
                    nursery.start_soon(self._pass_on, read, to_session)
                    async with _Session(from_server, write, client_info=CLIENT) as session:
                        try:
                            await session.initialize()
                        except Exception as error:
                            self._lose(_reason(error))  # the streams end now, which is not the reason
                            raise
                        await trio.lowlevel.checkpoint_if_cancelled()  # else nobody would be there to close it
                        self._session = session
                        self._life.deadline, self._life.shield = math.inf, True
                        task_status.started()
                        await self._leaving.wait()
                    nursery.cancel_scope.cancel()
        except BaseException as error:  # noqa: BLE001  the SDK's tasks raise all sorts of things, in groups of groups
            self._lose(_reason(error))
            if not isinstance(error, Exception):  # a cancellation, and perhaps what came of it
                raise (isinstance(error, BaseExceptionGroup) and error.split(Exception)[1]) or error from None
        self._lose("it was closed" if self._session else f"it did not answer within {CONNECT_TIMEOUT:g} s")
        if self._session is None:
            raise LinkLost(self._why + self._said())

    def close(self) -> None:
        """End the session in order; `run` returns when that is done, at most CLOSE_TIMEOUT later."""
        self._leaving.set()
        self._life.deadline = min(self._life.deadline, trio.current_time() + CLOSE_TIMEOUT)

    async def tools(self, limit: int) -> list[types.Tool]:
        """The server's tools, a page more than `limit` at most. Raises LinkLost, or CallError if the server refuses."""
        found: list[types.Tool] = []
        with self._answering(CONNECT_TIMEOUT) as session:
            cursor: str | None = None
            while len(found) <= limit:
                page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
                found += page.tools
                cursor = page.nextCursor
                if not cursor or not page.tools:
                    break
        return found

    async def call(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Raises LinkLost, or CallError. Cancellation: the server is told."""
        with self._answering(CALL_TIMEOUT) as session:
            result = await session.call_tool(tool, arguments)
        return result  # noqa: RET504  for type checkers the block above may swallow exceptions

    @contextmanager
    def _answering(self, timeout: float) -> Iterator[_Session]:
        """Around waiting for the server, which ends when the session does, or after `timeout` seconds."""
        if self.ended or self._session is None:
            raise LinkLost(self._why, unsent=True)
        with trio.move_on_after(timeout) as scope:
            self._waiting.add(scope)
            try:
                yield self._session
            except McpError as error:
                raise self._failure(error.error.code, error.error.message) from None
            except STREAM_ENDED:
                raise LinkLost("it has ended", unsent=True) from None
            except (RuntimeError, ValueError) as error:  # what it gave is not what it, or MCP, promised
                raise CallError("internal", f"the MCP server {self._server.name!r} breaks a rule: {error}") from None
            finally:
                self._waiting.discard(scope)
        if scope.cancelled_caught:
            if self.ended:
                raise LinkLost(self._why)
            message = f"the MCP server {self._server.name!r} did not answer within {timeout:g} s"
            raise CallError("deadline_exceeded", message, retryable=True)

    def _failure(self, code: int, message: str) -> Exception:
        if code == SESSION_TERMINATED:
            self._lose("it does not know the session any more")
            return LinkLost(self._why, unsent=True)
        if code == types.CONNECTION_CLOSED:
            return LinkLost(self._why or "it has ended")
        if code == TOO_LARGE:
            return CallError("resource_exhausted", f"the MCP server {self._server.name!r} {message}")
        return CallError("invalid_argument" if code == types.INVALID_PARAMS else "internal", message)

    def _lose(self, why: str) -> None:
        """There is no session any more: nobody will get an answer. Only the first reason counts."""
        if self.ended:
            return
        self.ended, self._why = True, redact_all(why, self._server.secrets)
        if self._session is not None:
            self._session.silent = True
        for scope in self._waiting:
            scope.cancel()
        self.close()

    async def _pass_on(self, source: Any, target: Any) -> None:
        """Messages from the transport to the session; when there are no more, the session is over."""
        async with source, target:
            with suppress(*STREAM_ENDED):
                async for message in source:
                    await target.send(message)
            self._lose("it has ended")

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[Any, Any]]:
        match self._server:
            case StdioServer() as server:
                self._child = await start_server(server)
                async with open_stdio(self._child) as streams:
                    yield streams
            case HttpServer(_, url, headers):
                async with (
                    httpx.AsyncClient(
                        headers={**{name: value.reveal() for name, value in headers.items()}, **_NOT_PACKED},
                        timeout=httpx.Timeout(CONNECT_TIMEOUT, read=READ_TIMEOUT),
                        transport=AnswersTransport(self._lose),
                    ) as client,
                    streamable_http_client(url, http_client=client) as (read, write, _),
                ):
                    yield read, write

    def _said(self) -> str:
        text = last_words(self._child, self._server.secrets) if self._child else ""
        return f"; it said: {text}" if text else ""


def _reason(error: BaseException) -> str:
    """Why a session did not begin, or broke, from the first exception of a group that is no mere consequence."""
    while isinstance(error, BaseExceptionGroup):
        others = [one for one in error.exceptions if not isinstance(one, trio.Cancelled)]
        error = (others or error.exceptions)[0]
    if isinstance(error, httpx.HTTPError):
        return describe(error)
    if isinstance(error, McpError) and error.error.code == TOO_LARGE:
        return f"it {error.error.message}"
    if isinstance(error, McpError) and error.error.code == SESSION_TERMINATED:
        return "it answered with HTTP 404: is the url right?"
    if isinstance(error, McpError):
        return f"it refused: {error.error.message}"
    if isinstance(error, LaunchError):
        return str(error)
    if isinstance(error, (TransportError, *STREAM_ENDED)):  # it went before it had read what we say
        return "it has ended"
    return f"{type(error).__name__}: {error}" if isinstance(error, RuntimeError) else type(error).__name__
