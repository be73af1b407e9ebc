"""JSON-RPC 2.0, one message a line: requests and notifications come in; answers, errors and notifications go out.

Each message is *admitted* in the order in which they come, at once; what then takes time runs beside the others.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import trio

from rlm_harness.lines import LINE_LIMIT, Lines, LineTooLong
from rlm_harness.surrogates import decode, without_halves
from rlm_wire.broker.groups import one_error
from rlm_wire.errors import TransportError
from rlm_wire.transports.base import ByteStream

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
NOT_FOUND: Final = -32002

VALUES_LIMIT: Final = 20_000
"""Values in one message, those in others included: each costs far more memory than the bytes that it is written in."""

ERRORS_LIMIT: Final = 256
"""Errors that were not sent yet, as the client does not read; what it says then has to wait."""

FLOOD_PATIENCE: Final = 0.5
"""Seconds in which a client that has so many errors to read must read one."""

LAST_GRACE: Final = 0.3
"""Seconds that a client which leaves gets to take what is being sent: it waits 2 s for us to end."""

RequestId: TypeAlias = int | str

_log: Final = logging.getLogger(__name__)


class RpcError(Exception):
    """What a request is answered with. `data` is for programs; it and `message` hold no secret."""

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    @property
    def told(self) -> dict[str, Any]:
        """As the protocol has it."""
        told: dict[str, Any] = {"code": self.code, "message": self.message}
        return told if self.data is None else told | {"data": self.data}


def invalid_params(*faults: str) -> RpcError:
    """What is wrong with the parameters of a request, each thing by the path of its field."""
    reason = "; ".join(faults)
    return RpcError(INVALID_PARAMS, f"invalid params: {reason}", {"reason": reason, "faults": list(faults)})


class ClientLost(Exception):
    """The client takes nothing any more."""


class Message(msgspec.Struct, frozen=True):
    """A request, or without an `id` a notification. `params` is unchecked JSON."""

    method: str
    id: RequestId | None
    params: bytes


class _Named(msgspec.Struct):
    id: RequestId | None = None


class _Incoming(msgspec.Struct):
    jsonrpc: str = "2.0"
    id: RequestId | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_INCOMING: Final = msgspec.json.Decoder(_Incoming)

_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)

Answer: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
"""Gives the result of a request. Raises RpcError."""

Admit: TypeAlias = Callable[[Message], Answer]
"""Takes a message up, at once. Raises RpcError."""


def parse_untrusted(line: bytes) -> Message | None:
    """The message in `line`, None if it is an answer. Halves of characters become U+FFFD. Raises RpcError."""
    if _has_too_many_values(line):
        raise RpcError(INVALID_REQUEST, f"the message has more than {VALUES_LIMIT} values")
    try:
        incoming = decode(_INCOMING, line)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_REQUEST, f"this is no request of JSON-RPC: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"this is not JSON: {error}") from None
    is_answer = incoming.result is not msgspec.UNSET or incoming.error is not msgspec.UNSET
    if incoming.jsonrpc != "2.0" or (incoming.method is None and not is_answer):
        raise RpcError(INVALID_REQUEST, "this is no request of JSON-RPC 2.0")
    if incoming.method is None:
        return None
    return Message(incoming.method, incoming.id, bytes(incoming.params))


def _has_too_many_values(line: bytes) -> bool:
    if line.count(b",") + line.count(b"[") + line.count(b"{") <= VALUES_LIMIT:  # also counts those within texts
        return False
    bare = _TEXT.sub(b"", line)
    return bare.count(b",") + bare.count(b"[") + bare.count(b"{") > VALUES_LIMIT


def id_untrusted(line: bytes) -> RequestId | None:
    """The id of what is no request otherwise, so that whoever waits for an answer gets one; None if it has none."""
    try:
        return msgspec.json.decode(line, type=_Named).id
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def answer_to(error: Exception) -> RpcError:
    """What a request that ended with `error` is answered with. One that nobody foresaw is logged: it is a bug."""
    if isinstance(error, RpcError):
        return error
    _log.error("a request has failed", exc_info=error)
    details = f"{type(error).__name__}: {error}"
    return RpcError(INTERNAL_ERROR, f"internal error: {details}", {"kind": "internal", "details": details})


class _Refusal(NamedTuple):
    id: RequestId | None
    error: RpcError


class Connection:
    """Serves one client over `stream`; `admit` knows the methods."""

    def __init__(self, stream: ByteStream, admit: Admit) -> None:
        self._stream = stream
        self._admit = admit
        self._sending = trio.Lock()
        self._writing: trio.CancelScope | None = None
        self._until = math.inf
        self.under_way = 0
        """Requests that were admitted, and have no answer yet."""

    async def run(self) -> None:
        """Serve until the client closes its side; requests that have no answer in LAST_GRACE then are given up.

        Raises ClientLost if it cannot be served any more.
        """
        lines = Lines(self._stream)
        refuse, refusals = trio.open_memory_channel[_Refusal](ERRORS_LIMIT)
        with one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._refuse, refusals)
                with one_error():
                    async with refuse, trio.open_nursery() as requests:
                        try:
                            while await self._serve_next(lines, requests, refuse):
                                pass
                        finally:
                            self.abandon(LAST_GRACE)
                        requests.cancel_scope.deadline = self._until

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification. Waits while the client does not read. Raises ClientLost."""
        await self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def abandon(self, grace: float = 0.0) -> None:
        """Send nothing any more in `grace` seconds: whoever does then, or is about to, gets ClientLost."""
        self._until = min(self._until, trio.current_time() + grace)
        if self._writing is not None:
            self._writing.deadline = self._until

    async def _serve_next(self, lines: Lines, requests: trio.Nursery, refuse: trio.MemorySendChannel[_Refusal]) -> bool:
        """Take the next message, whatever is wrong with it; False when there are no more."""
        try:
            line = await lines.next()
        except LineTooLong:
            reason = {"reason": f"a line has more than {LINE_LIMIT} bytes"}
            refusal: _Refusal | None = _Refusal(None, RpcError(INVALID_REQUEST, "the message is too long", reason))
        except TransportError as error:
            raise ClientLost(str(error)) from error
        else:
            if line is None:
                return False
            refusal = self._take(line, requests)
        if refusal is not None:
            with trio.move_on_after(FLOOD_PATIENCE) as waiting:
                await refuse.send(refusal)
            if waiting.cancelled_caught:
                _log.warning("the client has left %d errors unread: it is not served any more", ERRORS_LIMIT)
                raise ClientLost("the client does not read")
        return True

    def _take(self, line: bytes, requests: trio.Nursery) -> _Refusal | None:
        """Admit the message in `line`, or tell what it is to be answered with."""
        try:
            message = parse_untrusted(line) if line.strip() else None
        except RpcError as error:
            return _Refusal(id_untrusted(line), error)
        if message is None:
            return None
        try:
            answer = self._admit(message)
        except Exception as error:  # noqa: BLE001  one that nobody foresaw ends this request, and nothing else
            answered = answer_to(error)
            return _Refusal(message.id, answered) if message.id is not None else None
        if message.id is not None:
            self.under_way += 1
            requests.start_soon(self._answer, message.id, answer)
        else:
            requests.start_soon(self._obey, answer)
        return None

    async def _refuse(self, refusals: trio.MemoryReceiveChannel[_Refusal]) -> None:
        """Send errors in the order of what they answer."""
        async for refusal in refusals:
            await self._send({"jsonrpc": "2.0", "id": refusal.id, "error": refusal.error.told})

    async def _answer(self, request_id: RequestId, answer: Answer) -> None:
        try:
            try:
                told = {"result": await answer()}
            except Exception as error:  # noqa: BLE001  as in _take
                told = {"error": answer_to(error).told}
            with trio.CancelScope(shield=True):  # an answer that there is is also sent; `abandon` bounds that
                await self._send({"jsonrpc": "2.0", "id": request_id, **told})
        finally:
            self.under_way -= 1

    async def _obey(self, answer: Answer) -> None:
        """A notification has no answer, not even if it fails."""
        try:
            await answer()
        except Exception as error:  # noqa: BLE001  as in _take
            answer_to(error)

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            line = msgspec.json.encode(message) + b"\n"
        except UnicodeEncodeError:  # a file's name, for instance, may be no text
            line = without_halves(json.dumps(message).encode()) + b"\n"
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
