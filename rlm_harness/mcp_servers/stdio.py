"""An MCP server that is a child process of ours: what it says, line by line, none longer than a limit.

The SDK's own client of this kind reads a line of any length, and takes quadratic time for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

import anyio
import pydantic
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from rlm_harness.lines import Lines, LineTooLong
from rlm_harness.mcp_servers.answers import ANSWER_LIMIT, too_large
from rlm_harness.mcp_servers.configuration import StdioServer
from rlm_harness.secrets import Secret, redact_all
from rlm_harness.surrogates import without_halves
from rlm_wire.transports.children import ChildStream, start_child

SAID_TAIL: Final = 2000
"""Characters of what a server last said on stderr, for the message that it does not work."""

STREAM_ENDED: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError)
"""What the SDK's streams raise when whoever had the other end has left."""

Incoming: TypeAlias = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing: TypeAlias = MemoryObjectSendStream[SessionMessage]


async def start_server(server: StdioServer) -> ChildStream:
    """To be handed to `open_stdio` at once. Raises LaunchError. Cancellation: ends it again."""
    given = {name: value.reveal() for name, value in server.env.items()}
    environment = {**get_default_environment(), **given}
    argv = [server.command, *server.arguments]
    return await start_child(argv, "it", environment=environment, cwd=server.cwd, echo_stderr=False)


@asynccontextmanager
async def open_stdio(child: ChildStream) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """What a session with `child` receives from and sends to; what it receives ends with the child.

    Raises TransportError, from the block and in a group, if the child has closed its stdin. Leaving ends the child as
    `ChildStream.aclose` does.
    """
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    unanswered: set[types.RequestId] = set()
    async with trio.open_nursery() as watching:
        watching.start_soon(child.watch)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_receive, child, to_session, unanswered)
                nursery.start_soon(_send, child, from_session, unanswered)
                yield from_server, to_server
                nursery.cancel_scope.cancel()
        finally:
            await child.aclose()
            watching.cancel_scope.cancel()


def last_words(child: ChildStream, secrets: Sequence[Secret]) -> str:
    """What it last said on stderr, without its secrets."""
    return redact_all(child.stderr, secrets).strip()[-SAID_TAIL:]


async def _receive(
    child: ChildStream, to_session: MemoryObjectSendStream[SessionMessage | Exception], unanswered: set[types.RequestId]
) -> None:
    lines = Lines(child, ANSWER_LIMIT)
    async with to_session:
        with suppress(*STREAM_ENDED):
            while True:
                try:
                    line = await lines.next()
                except LineTooLong:  # the answer to one of these: to which, nobody has read
                    answers = [types.JSONRPCMessage.model_validate(too_large(number)) for number in unanswered]
                    unanswered.clear()
                else:
                    if line is None:
                        return
                    answers = _messages_untrusted(line)
                for message in answers:
                    if isinstance(message.root, types.JSONRPCResponse | types.JSONRPCError):
                        unanswered.discard(message.root.id)
                    await to_session.send(SessionMessage(message))


def _messages_untrusted(line: bytes) -> list[types.JSONRPCMessage]:
    """The message that `line` is, or none: programs print what they like."""
    if not line.lstrip().startswith(b"{"):
        return []
    for data in (line, without_halves(line)):
        with suppress(pydantic.ValidationError):
            return [types.JSONRPCMessage.model_validate_json(data)]
    return []


async def _send(
    child: ChildStream, from_session: MemoryObjectReceiveStream[SessionMessage], unanswered: set[types.RequestId]
) -> None:
    async with from_session:
        async for message in from_session:
            match message.message.root:
                case types.JSONRPCRequest(id=number):
                    unanswered.add(number)
                case types.JSONRPCNotification(method="notifications/cancelled", params={"requestId": number}):
                    unanswered.discard(number)
            text = message.message.model_dump_json(by_alias=True, exclude_none=True)
            await child.send([text.encode() + b"\n"])
