"""JSON-RPC 2.0, one message a line: requests and notifications come in; answers, errors and notifications go out.

Each message is *admitted* in the order in which they come, at once; what then takes time runs beside the others.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import msgspec
import trio

from rlm_harness.lines import LINE_LIMIT, Lines, LineTooLong
from rlm_wire.broker.groups import one_error
from rlm_wire.errors import TransportError
from rlm_wire.transports.base import ByteStream

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
NOT_FOUND: Final = -32002

REQUESTS_LIMIT: Final = 256
"""Requests that have no answer yet: more is a client that has lost its way."""

LAST_GRACE: Final = 0.3
"""Seconds that a client which leaves gets to take what is being sent: it waits 2 s for us to end."""

RequestId: TypeAlias = int | str


class RpcError(Exception):
    """What a request is answered with. `data` is for programs; it and `message` hold no secret."""

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class ClientLost(Exception):
    """The client takes nothing any more."""


class Message(msgspec.Struct, frozen=True):
    """A request, or without an `id` a notification. `params` is unchecked JSON."""

    method: str
    id: RequestId | None
    params: bytes


class _Incoming(msgspec.Struct):
    jsonrpc: str = "2.0"
    id: RequestId | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


Answer: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
"""Gives the result of a request. Raises RpcError."""

Admit: TypeAlias = Callable[[Message], Answer]
"""Takes a message up, at once. Raises RpcError."""


def parse_untrusted(line: bytes) -> Message | None:
    """The message in `line`, None if it is an answer. Raises RpcError."""
    try:
        incoming = msgspec.json.decode(line, type=_Incoming)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_REQUEST, "this is no request of JSON-RPC", {"reason": str(error)}) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, "this is not JSON", {"reason": str(error)}) from None
    is_answer = incoming.result is not msgspec.UNSET or incoming.error is not msgspec.UNSET
    if incoming.jsonrpc != "2.0" or (incoming.method is None and not is_answer):
        raise RpcError(INVALID_REQUEST, "this is no request of JSON-RPC 2.0")
    if incoming.method is None:
        return None
    return Message(incoming.method, incoming.id, bytes(incoming.params))


class Connection:
    """Serves one client over `stream`; `admit` knows the methods."""

    def __init__(self, stream: ByteStream, admit: Admit) -> None:
        self._stream = stream
        self._admit = admit
        self._sending = trio.Lock()
        self._writing: trio.CancelScope | None = None
        self._until = math.inf
        self._under_way = 0

    async def run(self) -> None:
        """Serve until the client closes its side; requests that have no answer then are given up.

        Raises ClientLost if it cannot be served any more.
        """
        lines = Lines(self._stream)
        with one_error():
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        line = await self._next(lines)
                        if line is None:
                            break
                        message = parse_untrusted(line) if line.strip() else None
                    except LineTooLong:
                        reason = {"reason": f"a line has more than {LINE_LIMIT} bytes"}
                        await self._fail(None, RpcError(INVALID_REQUEST, "the message is too long", reason))
                    except RpcError as error:
                        await self._fail(None, error)
                    else:
                        if message is not None:
                            await self._take(message, nursery)
                self.abandon(LAST_GRACE)
                nursery.cancel_scope.cancel()

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification. Waits while the client does not read. Raises ClientLost."""
        await self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def abandon(self, grace: float = 0.0) -> None:
        """Send nothing any more in `grace` seconds: whoever does then, or is about to, gets ClientLost."""
        self._until = min(self._until, trio.current_time() + grace)
        if self._writing is not None:
            self._writing.deadline = self._until

    async def _next(self, lines: Lines) -> bytes | None:
        try:
            return await lines.next()
        except TransportError as error:
            raise ClientLost(str(error)) from error

    async def _take(self, message: Message, nursery: trio.Nursery) -> None:
        try:
            if message.id is not None and self._under_way >= REQUESTS_LIMIT:
                raise RpcError(INVALID_REQUEST, f"there are {REQUESTS_LIMIT} requests without an answer already")
            answer = self._admit(message)
        except RpcError as error:
            if message.id is not None:
                await self._fail(message.id, error)
            return
        self._under_way += 1
        nursery.start_soon(self._answer, message.id, answer)

    async def _answer(self, request_id: RequestId | None, answer: Answer) -> None:
        try:
            result = await answer()
            if request_id is not None:
                await self._send({"jsonrpc": "2.0", "id": request_id, "result": result})
        except RpcError as error:
            if request_id is not None:
                await self._fail(request_id, error)
        finally:
            self._under_way -= 1

    async def _fail(self, request_id: RequestId | None, error: RpcError) -> None:
        told: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.data is not None:
            told["data"] = error.data
        await self._send({"jsonrpc": "2.0", "id": request_id, "error": told})

    async def _send(self, message: dict[str, Any]) -> None:
        line = msgspec.json.encode(message) + b"\n"
        async with self._sending:
            if trio.current_time() >= self._until:
                raise ClientLost("nothing is sent any more")
            # half a line would spoil all that come behind it
            with trio.CancelScope(shield=True, deadline=self._until) as self._writing:
                try:
                    await self._stream.send([line])
                except TransportError as error:
                    raise ClientLost(str(error)) from error
            if self._writing.cancelled_caught:
                raise ClientLost("the client does not read")
