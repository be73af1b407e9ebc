"""A streamed chat completion: bytes in, text and one reply out. Pure, and every byte is taken for hostile."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rlm_harness.events import Usage
from rlm_harness.model.interface import Reply, ToolCall
from rlm_harness.model.overflow import is_overflow
from rlm_harness.surrogates import decode, without_halves

MAX_REPLY = 16 * 1024 * 1024
"""Bytes of one streamed reply: far above any model's output limit, far below what hurts."""

MAX_EVENT = 1024 * 1024
"""Bytes of one server-sent event: endpoints send single tokens, some a whole tool call at once."""

MAX_TOOL_CALLS = 128
"""Tool calls in one reply; more than one is refused anyway, in words."""

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A final CR waits for the next byte, which may be its LF."""

_ANYTHING = msgspec.json.Decoder[Any]()


class MalformedReply(Exception):
    """The stream is not a chat completion, or ended early."""


class ReportedError(Exception):
    """The endpoint reported an error inside the stream: `status` if it gave an HTTP status as code.

    `overflow`: the conversation is too long for it.
    """

    def __init__(self, message: str, status: int | None, *, overflow: bool) -> None:
        super().__init__(message)
        self.status = status
        self.overflow = overflow


class EventStreamDecoder:
    """Server-sent events: `feed` bytes in any portions, get the data of each event that is complete."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, received: bytes) -> list[bytes]:
        """Raises MalformedReply if one event is larger than MAX_EVENT."""
        lines: list[bytes] = []
        # Looked through only when a line may end: or a line that comes byte by byte would be looked through for each.
        ends = b"\n" in received or b"\r" in received or self._rest.endswith(b"\r")
        self._rest += received
        if ends:
            *lines, rest = _LINE_END.split(self._rest)
            self._rest = bytearray(rest)
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
                self._size = 0
            if self._size > MAX_EVENT:
                break
        if self._size + len(self._rest) > MAX_EVENT:
            raise MalformedReply(f"one event of the stream is larger than {MAX_EVENT} bytes")
        return events


class _FunctionDelta(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _FunctionDelta | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    def checked(self) -> Usage:
        prompt = max(self.prompt_tokens or 0, 0)
        cached = (self.prompt_tokens_details.cached_tokens or 0) if self.prompt_tokens_details is not None else 0
        return Usage(prompt, max(self.completion_tokens or 0, 0), min(max(cached, 0), prompt))


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class _PartialCall(msgspec.Struct):
    id: str
    index: int | None
    name: str = ""
    arguments: list[str] = msgspec.field(default_factory=list)


class ReplyAssembler:
    """Puts the deltas of a streamed completion together. `complete` once the endpoint said how the reply ended."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Chunk)
        self._text: list[str] = []
        self._calls: list[_PartialCall] = []
        self._usage = Usage()
        self._finish_reason = ""

    @property
    def complete(self) -> bool:
        return bool(self._finish_reason)

    def feed(self, data: bytes) -> str:
        """Take the data of one event; returns the text it added. Raises MalformedReply or ReportedError."""
        try:
            chunk = decode(self._decoder, data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            shown = data[:80].decode("utf-8", "replace")
            raise MalformedReply(f"not a chat completion chunk ({error}): {shown!r}") from None
        if chunk.error is not None:
            raise _reported(chunk.error)
        if chunk.usage is not None:
            self._usage = chunk.usage.checked()
        # Only one reply was asked for; the chunk that carries the usage has no choice at all.
        choice = chunk.choices[0] if chunk.choices else _Choice()
        self._finish_reason = choice.finish_reason or self._finish_reason
        delta = choice.delta or _Delta()
        for call in delta.tool_calls or ():
            self._take_call(call)
        text = delta.content or ""
        self._text.append(text)
        return text

    def _take_call(self, delta: _CallDelta) -> None:
        call = self._find_call(delta)
        if call is None:
            if len(self._calls) == MAX_TOOL_CALLS:
                raise MalformedReply(f"more than {MAX_TOOL_CALLS} tool calls in one reply")
            call = _PartialCall(id=delta.id or f"call_{len(self._calls)}", index=delta.index)
            self._calls.append(call)
        function = delta.function or _FunctionDelta()
        if function.name and function.name != call.name:  # some endpoints repeat it in every delta
            call.name += function.name
        call.arguments.append(function.arguments or "")

    def _find_call(self, delta: _CallDelta) -> _PartialCall | None:
        """The call that `delta` continues, or None if it begins one.

        Endpoints differ: some give every call index 0 and tell calls apart by id only, some make up a new id for each
        delta. What begins a call always carries a name.
        """
        begins = bool(delta.function and delta.function.name)
        for call in reversed(self._calls):
            if delta.id == call.id:
                return call
            if delta.index in (None, call.index) and not (delta.id and begins):
                return call
        return None

    def reply(self) -> Reply:
        """The reply so far put together. Raises MalformedReply if it is not complete."""
        if not self.complete:
            raise MalformedReply("the stream ended in the middle of the reply")
        calls = [ToolCall(call.id, call.name, _arguments(call)) for call in self._calls]
        return Reply("".join(self._text), calls, self._finish_reason, self._usage)


def _arguments(call: _PartialCall) -> str:
    """Its arguments, which are JSON within JSON, and so may have halves of characters that only show in there."""
    return without_halves("".join(call.arguments).encode()).decode()


def _reported(error: Any) -> ReportedError:
    fields = error if isinstance(error, dict) else {"message": error}
    code = fields.get("code")
    status = int(code) if isinstance(code, int | str) and re.fullmatch(r"[45]\d\d", str(code)) else None
    message = str(fields.get("message") or "no message")[:500]
    return ReportedError(message, status, overflow=is_overflow(status, fields))


def error_body(body: bytes) -> Any:
    """An error response as an object if it is JSON, else the beginning of its text."""
    try:
        return decode(_ANYTHING, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body[:2000].decode("utf-8", "replace")


def error_message(body: bytes) -> str:
    """What an error response says, in one line of at most 500 characters, whatever shape the endpoint gives it."""
    decoded = error_body(body)
    text: Any = None
    if isinstance(decoded, dict):
        inner = decoded.get("error", decoded)
        text = inner.get("message", inner.get("detail")) if isinstance(inner, dict) else inner
    if not isinstance(text, str):
        text = body[:2000].decode("utf-8", "replace")
    return " ".join(text.split())[:500]
