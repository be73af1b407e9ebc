"""HTTP for the SDK's client: the answer to each request, whole, or the word that none will come.

A server may answer with JSON or with a stream of events, of which one is the answer. The SDK waits for ever for one
whose stream has broken off, and under Trio leaves the generators of each stream behind. So the answer is read here, and
the SDK gets it as JSON, which it can decode. What else such a stream brings, progress for instance, nobody here would
look at; a stream that broke off is not resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import msgspec
import trio

from rlm_harness.surrogates import decode, without_halves

Lost = Callable[[str], None]
"""Told why."""

ANSWER_LIMIT: Final = 32 << 20
"""Bytes of one message: twice what the wire to the cell takes, for many servers say the same as text and as JSON."""

TOO_LARGE: Final = 413
"""The error code of an answer that stands for one beyond the limit; called so by HTTP, and not used by MCP."""

KIND_SHOWN: Final = 100
"""Characters of what a server calls the answer that is none."""

END_GRACE: Final = 1.0
"""Seconds that a stream gets to end behind the answer: read to its end, the connection serves the next request."""


class AnswersTransport(httpx.AsyncBaseTransport):
    """`lost` is called when the server cannot be reached, or ends what it says without having answered."""

    def __init__(self, lost: Lost, inner: httpx.AsyncBaseTransport | None = None) -> None:
        self._inner = inner or httpx.AsyncHTTPTransport()
        self._lost = lost

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":  # a stream of what is no answer: nobody would look at it, and it may be endless
            return httpx.Response(405)
        try:
            response = await self._inner.handle_async_request(request)
            try:
                return await self._taken(request, response)
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            self._lost(describe(error))
            raise

    async def _taken(self, request: httpx.Request, response: httpx.Response) -> httpx.Response:
        """`response` with the answer to `request`, or without a body, if there is none to be expected."""
        headers = {name: value for name, value in response.headers.items() if name not in _ABOUT_THE_BODY}
        content = b""
        said = await request.aread()
        asked = msgspec.json.decode(said, type=_Message) if request.method == "POST" else _Message()
        if asked.method is not None and asked.id is not None and response.is_success:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in ("text/event-stream", "application/json"):
                answered = kind[:KIND_SHOWN] or f"HTTP {response.status_code} and nothing"
                raise _NoMessage(f"it answered with {answered}, not with a message of MCP: is the url right?")
            headers["content-type"] = "application/json"
            try:
                content = without_halves(await _answer(response.stream, events=kind == "text/event-stream"))
            except _TooLarge:
                content = msgspec.json.encode(too_large(asked.id))
        return httpx.Response(response.status_code, headers=headers, content=content)

    async def aclose(self) -> None:
        await self._inner.aclose()


_ABOUT_THE_BODY: Final = {"content-length", "content-encoding", "transfer-encoding"}


class _TooLarge(Exception):
    pass


class _NoMessage(httpx.RemoteProtocolError):
    """The text says what there is in place of an answer."""


def too_large(number: int | str | None) -> dict[str, Any]:
    """The JSON-RPC error that answers the request `number` in place of what is beyond the limit."""
    error = {"code": TOO_LARGE, "message": f"sent a message of more than {ANSWER_LIMIT >> 20} MiB"}
    return {"jsonrpc": "2.0", "id": number, "error": error}


class _Message(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_MESSAGE: Final = msgspec.json.Decoder(_Message)


async def _answer(stream: Any, *, events: bool) -> bytes:
    """The JSON-RPC response in `stream`. Raises _TooLarge, or httpx.TransportError if there is none."""
    messages = _Events() if events else None
    body = bytearray()
    answer: bytes | None = None
    beyond = False
    with trio.CancelScope() as reading:  # which ends the stream's nested generators in order, as a break would not
        async for piece in stream:
            if messages is None:
                body += piece
            elif answer is None and (answer := next(filter(_is_response_untrusted, messages.feed(piece)), None)):
                reading.deadline = trio.current_time() + END_GRACE
            if answer is None and len(body) + (messages.size if messages else 0) > ANSWER_LIMIT:
                beyond = True
                body.clear()
                reading.cancel()
    if beyond:
        raise _TooLarge
    if answer is None and _is_response_untrusted(bytes(body)):
        answer = bytes(body)
    if answer is None:
        raise httpx.RemoteProtocolError("no answer")
    return answer


class _Events:
    """Cuts a stream of events into the data of each."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data = bytearray()

    @property
    def size(self) -> int:
        """Bytes that are kept until their event is complete."""
        return len(self._line) + len(self._data)

    def feed(self, piece: bytes) -> Iterator[bytes]:
        *ended, rest = piece.split(b"\n")
        for end in ended:
            line = bytes(self._line + end).rstrip(b"\r")
            self._line.clear()
            if line.startswith(b"data:"):
                self._data += line[5:].removeprefix(b" ") + b"\n"
            elif not line and self._data:
                yield bytes(self._data)
                self._data.clear()
        self._line += rest


def _is_response_untrusted(data: bytes) -> bool:
    try:
        message = decode(_MESSAGE, data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return message.method is None and bool(bytes(message.result) or bytes(message.error))


def describe(error: httpx.HTTPError) -> str:
    """What went wrong with a connection, without address or headers of ours, which may hold secrets."""
    if isinstance(error, _NoMessage):
        return str(error)
    if isinstance(error, httpx.HTTPStatusError):
        return f"it answered with HTTP {error.response.status_code}"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "it could not be reached"
    if isinstance(error, httpx.RemoteProtocolError):
        return "it ended without an answer, or gave one that is none"
    return "the connection broke"
