"""Any OpenAI-compatible chat-completions endpoint, streamed over HTTP. Decoding and retry rules are in the siblings."""

from __future__ import annotations

import math
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

import httpx
import msgspec
import trio

from rlm_harness.events import Emit, Retrying, TextDelta
from rlm_harness.model.discovery import window_untrusted
from rlm_harness.model.interface import ContextOverflow, Message, ModelError, Reply, ToolChoice, ToolSchema
from rlm_harness.model.overflow import is_overflow
from rlm_harness.model.retries import RetryPolicy, is_retryable, parse_retry_after
from rlm_harness.model.streaming import (
    MAX_REPLY,
    EventStreamDecoder,
    MalformedReply,
    ReplyAssembler,
    ReportedError,
    error_body,
    error_message,
)
from rlm_harness.secrets import Secret, UserError, redact_all

CONNECT_TIMEOUT = 15.0
"""Seconds for name, TCP and TLS: a reachable endpoint needs far less, and a retry follows anyway."""

IDLE_TIMEOUT = 300.0
"""Seconds without an event before a stream counts as stalled: reasoning models are silent for minutes."""

HEAD_TIMEOUT = 600.0
"""Seconds from the request to the end of the answer's headers: the request may be large, and the bytes may drip."""

MAX_ERROR_BODY = 64 * 1024
"""Bytes read of an error response: it is shown in one line."""

REFUSAL_TIMEOUT = 10.0
"""Seconds for them: the status says the most."""

DISCOVERY_TIMEOUT = 10.0
"""Seconds for `/models`: without it all works, only less smoothly."""

MAX_MODELS = 4 * 1024 * 1024
"""Bytes of `/models`: some endpoints list hundreds."""

END_GRACE = 2.0
"""Seconds that a stream gets to end behind its last event: read to its end, the connection serves the next request."""


_TOO_LONG = "the conversation is too long for the model"


class _TryAgain(Exception):
    """This attempt failed in a way that the next may not."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class ChatModel:
    """One model behind one endpoint; made by `open_chat_model`. Any number of replies may be under way at once."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        name: str,
        key: Secret | None,
        policy: RetryPolicy,
        idle_timeout: float,
        several_tools: bool,
        headers: Mapping[str, str],
        request_header: str,
    ) -> None:
        self._client = client
        self._idle_timeout = idle_timeout
        self._several_tools = several_tools
        self._headers = dict(headers)
        self._request_header = request_header
        self._url = url
        self._name = name
        self._key = key
        self._secrets = [Secret(value) for value in headers.values()] + ([key] if key else [])
        self._policy = policy
        self._met = False  # the endpoint has been reached
        self._window: int | None = None
        self._discovered = False
        self._discovering = trio.Lock()
        self._jitter = random.SystemRandom()

    @property
    def name(self) -> str:
        return self._name

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        emit: Emit,
        tool_choice: ToolChoice = "auto",
    ) -> Reply:
        """See `Model.reply`. Tries again as the retry policy says, telling `emit` each time.

        Raises ModelError: the request was refused (key, model, URL), or every attempt failed; ContextOverflow.
        Cancellation: closes the connection of the request under way.
        """
        body = msgspec.json.encode(self._request(messages, tools, tool_choice))  # each attempt sends the same bytes
        request_id = secrets.token_hex(16) if self._request_header else ""
        failures = 0
        while True:
            try:
                reply = await self._attempt(body, request_id, emit)
                return msgspec.structs.replace(reply, request_id=request_id)
            except _TryAgain as failure:
                failures += 1
                delay = self._policy.delay(failures, self._jitter.random(), failure.retry_after, met=self._met)
                if delay is None:
                    self._give_up(failure, failures)
                await emit(Retrying(self._safe(str(failure)), round(delay, 3), failures + 1))
                await trio.sleep(delay)

    async def context_window(self) -> int | None:
        """Tokens of the model's window if the endpoint tells, asked once: None also if it does not answer in time.

        Cancellation: closes the connection; the next caller asks again.
        """
        async with self._discovering:
            if not self._discovered:
                with trio.move_on_after(DISCOVERY_TIMEOUT):
                    self._window = await self._discover()
                self._discovered = True
        return self._window

    async def _discover(self) -> int | None:
        url = self._url.removesuffix("/chat/completions") + "/models"
        body = b""
        try:
            headers = {"Accept-Encoding": "identity"} | self._authorization()
            async with self._client.stream("GET", url, headers=headers) as response, _body(response) as received:
                if response.status_code != httpx.codes.OK or _is_packed(response):
                    return None
                async for data in received:
                    body += data
                    if len(body) > MAX_MODELS:
                        return None
        except httpx.HTTPError:
            return None
        return window_untrusted(body, self._name)

    def _authorization(self) -> dict[str, str]:
        key = {} if self._key is None else {"Authorization": f"Bearer {self._key.reveal()}"}
        return self._headers | key

    def _request(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], tool_choice: ToolChoice
    ) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self._name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:  # endpoints refuse parallel_tool_calls without tools
            request |= {"tools": list(tools), "parallel_tool_calls": self._several_tools}
            if tool_choice != "auto":
                request["tool_choice"] = tool_choice
        return request

    async def _attempt(self, body: bytes, request_id: str, emit: Emit) -> Reply:
        headers = self._authorization() | {
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }
        if request_id:
            headers |= {self._request_header: request_id, "Idempotency-Key": request_id}
        try:
            with trio.fail_after(HEAD_TIMEOUT) as asking:
                async with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                    asking.deadline = math.inf
                    self._met = True
                    await self._check(response)
                    return await self._receive(response, emit)
        except httpx.ConnectTimeout:
            raise _TryAgain(f"no connection to {self._url} within {CONNECT_TIMEOUT:.0f} s{self._doubt()}") from None
        except (httpx.TimeoutException, trio.TooSlowError):
            raise _TryAgain("the endpoint sends nothing, or next to nothing: the stream has stalled") from None
        except httpx.ConnectError as error:
            raise _TryAgain(f"cannot reach {self._url} ({_reason(error)}){self._doubt()}") from None
        except httpx.TransportError as error:
            raise _TryAgain(f"the connection broke: {error}") from None
        except MalformedReply as error:
            raise _TryAgain(str(error)) from None

    async def _check(self, response: httpx.Response) -> None:
        """Raises what is to be raised if no stream of events follows."""
        if response.status_code != httpx.codes.OK:
            await self._refuse(response)
        kind = response.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "text/event-stream":
            answered = f"{self._url} answered with {kind or 'no type'}, not with events"
            raise ModelError(self._safe(f"{answered}: is the base URL right?"), refused=True)
        if _is_packed(response):
            raise ModelError(f"{self._url} packs its answer, although asked not to", refused=True)

    async def _receive(self, response: httpx.Response, emit: Emit) -> Reply:
        decoder, assembler = EventStreamDecoder(), ReplyAssembler()
        received = 0
        done = False
        deadline = trio.current_time() + self._idle_timeout
        try:
            async with _body(response) as body:
                while data := await _next(body, deadline):
                    received += len(data)
                    if received > MAX_REPLY:
                        raise ModelError(f"the reply is larger than {MAX_REPLY} bytes")
                    for event in decoder.feed(data):
                        if text := "" if event == b"[DONE]" else assembler.feed(event):
                            await emit(TextDelta(text))
                        if not done:  # comments and parts of events put off nothing
                            done = event == b"[DONE]"
                            deadline = trio.current_time() + (END_GRACE if done else self._idle_timeout)
        except ReportedError as error:
            if error.overflow:
                raise ContextOverflow(self._safe(f"{_TOO_LONG}; the endpoint reports: {error}")) from None
            if error.status is None or is_retryable(error.status):
                raise _TryAgain(f"the endpoint reports: {error}") from None
            raise ModelError(self._safe(f"the endpoint reports: {error}"), refused=True) from None
        except (httpx.TransportError, trio.TooSlowError):
            if not assembler.complete:  # a connection that breaks or stalls behind the last word does no harm
                raise
        return assembler.reply()

    async def _refuse(self, response: httpx.Response) -> NoReturn:
        status = response.status_code
        text = b""
        deadline = trio.current_time() + REFUSAL_TIMEOUT
        async with _body(response) as body:
            with suppress(trio.TooSlowError):
                while len(text) < MAX_ERROR_BODY and not _is_packed(response) and (data := await _next(body, deadline)):
                    text += data[: MAX_ERROR_BODY - len(text)]
        said = "" if _is_packed(response) else error_message(text)
        said = f": {said}" if said else ""
        if is_retryable(status):
            retry_after = parse_retry_after(response.headers.get("retry-after"), time.time())
            raise _TryAgain(f"HTTP {status}{said}", retry_after)
        if is_overflow(status, error_body(text)):
            raise ContextOverflow(self._safe(f"{_TOO_LONG}; HTTP {status} from {self._url}{said}"))
        advice = {
            401: "the API key is wrong or missing (OPENAI_API_KEY or --api-key-file)",
            403: "the API key may not use this model",
            404: "no such model or no such URL (check --model; --base-url usually ends in /v1)",
        }.get(
            status,
            f"{self._url} moved: use its new address as base URL"
            if 300 <= status < 400
            else "the endpoint refuses the request",
        )
        raise ModelError(self._safe(f"{advice}; HTTP {status} from {self._url}{said}"), refused=True)

    def _give_up(self, failure: _TryAgain, failures: int) -> NoReturn:
        asked = failure.retry_after
        why = f"gave up after {failures} attempt{'s' * (failures > 1)}"
        if asked is not None and asked > self._policy.longest_wait:
            why = f"the endpoint asks to wait {asked:.0f} s; try again then"
        raise ModelError(self._safe(f"{failure} ({why})"))

    def _doubt(self) -> str:
        return "" if self._met else "; check --base-url"

    def _safe(self, text: str) -> str:
        return redact_all(text, self._secrets)


def _is_packed(response: httpx.Response) -> bool:
    return bool(response.headers.get("content-encoding", "identity").strip().lower() != "identity")


async def _next(body: AsyncIterator[bytes], deadline: float) -> bytes:
    """The next bytes, or none at the end. Raises trio.TooSlowError."""
    with trio.fail_at(deadline):
        return await anext(body, b"")


def _reason(error: httpx.ConnectError) -> str:
    """Trio tries all addresses of a name, and its error says only that; what went wrong is in a group below it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, BaseExceptionGroup):
        cause = cause.__cause__ or cause.__context__
    attempts = cause.exceptions if cause is not None else ()
    reasons = [os.strerror(attempt.errno) for attempt in attempts if isinstance(attempt, OSError) and attempt.errno]
    return "; ".join(dict.fromkeys(reasons)) or str(error)


@asynccontextmanager
async def _body(response: httpx.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    """The body of `response`; leaving before its end closes the connection.

    httpx reads through generators within generators, and closing the outermost leaves the others to the garbage
    collector. With the connection closed, reading on makes all of them end.
    """
    body = response.aiter_raw()  # unpacking would have no limit
    try:
        yield body
    finally:
        with trio.CancelScope(shield=True):
            await response.aclose()
            with suppress(httpx.HTTPError, httpx.StreamError):
                async for _ in body:
                    pass


@asynccontextmanager
async def open_chat_model(
    name: str,
    base_url: str,
    key: Secret | None = None,
    *,
    policy: RetryPolicy | None = None,
    idle_timeout: float = IDLE_TIMEOUT,
    several_tools: bool = False,
    headers: Mapping[str, str] | None = None,
    request_header: str = "",
) -> AsyncIterator[ChatModel]:
    """The model `name` of the endpoint `base_url`, for instance `http://127.0.0.1:8000/v1`.

    Raises UserError if `base_url` is no plain HTTP URL. `idle_timeout` in seconds without an event.
    `several_tools`: a reply may ask for several tool calls. `headers` go with every request, and their values are no
    more shown than the key. With a `request_header` each call gets an id, which all its attempts carry in that header,
    and as Idempotency-Key.
    Cancellation: closes the connections.
    """
    url = completions_url(base_url)
    timeout = httpx.Timeout(idle_timeout, connect=CONNECT_TIMEOUT)
    async with httpx.AsyncClient(timeout=timeout, limits=httpx.Limits(max_connections=None)) as client:
        policy = policy or RetryPolicy()
        yield ChatModel(client, url, name, key, policy, idle_timeout, several_tools, headers or {}, request_header)


def completions_url(base_url: str) -> str:
    """Where to POST, below `base_url`. Raises UserError that says what is wrong with it."""
    try:
        url = httpx.URL(base_url)
        url.host.encode("idna")  # as the look-up will, and there nobody expects that it cannot be done
    except (httpx.InvalidURL, TypeError, UnicodeError) as error:
        raise UserError(f"the base URL is not one: {error}") from None
    if url.userinfo or url.query or url.fragment:
        raise UserError("a base URL has no user, password, query or fragment; the key has its own place")
    if url.scheme not in {"http", "https"} or not url.host or (url.port or 0) >= 1 << 16:
        raise UserError(f"{base_url!r} is not an http:// or https:// URL")
    return f"{base_url.rstrip('/')}/chat/completions"
