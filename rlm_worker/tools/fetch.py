"""Getting the text of a web page: GET, redirects, limits. What makes a body into text is the program `page`.

httpx is imported with the first fetch, in a thread: it takes longer than the worker's start.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import sys
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.tools import FetchResult
from rlm_worker.processes import Process, Reaper, memory_file, output_pipe

if TYPE_CHECKING:
    import httpx

BODY_LIMIT = 10 * 1024 * 1024
"""Bytes of a body, unpacked: far more text than anyone reads. Larger things are for a download by command."""

REDIRECT_LIMIT = 10

PAGES_AT_ONCE = 4
"""How many bodies are made into text at the same time: each may take `page.MEMORY_LIMIT`."""

_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; rlm-worker)",
    "Accept": "text/html, text/*;q=0.9, */*;q=0.5",
    "Accept-Encoding": "gzip",
}
_GZIP = {"gzip", "x-gzip"}

_PATH = [directory for directory in sys.path if directory]
_MAKE_TEXT = "from rlm_worker.tools.page import main; main()"
_making_text = trio.CapacityLimiter(PAGES_AT_ONCE)
_READ_SIZE = 64 * 1024
_DIGITS = 10
_ANSWER_LIMIT = _DIGITS + 1 + 4 * BODY_LIMIT
"""Bytes: how many characters there are, and four for each that can be wanted."""


async def run_fetch(
    reaper: Reaper,
    url: str,
    *,
    max_chars: int = 20_000,
    timeout: float = 45.0,
    note_started: Callable[[Process], None] | None = None,
) -> FetchResult:
    """GET `url` (https is assumed if it names no scheme) and give its text; an HTTP error status is a result.

    Redirects are followed, `REDIRECT_LIMIT` at most, to http and https only. No proxy is taken from the environment.
    HTML becomes readable text, other text stays as it is; what is not text is named instead of shown. That is done by a
    process of its own, contained as a command is; `note_started` is told of it.

    Raises CallError: `invalid_argument` (no HTTP URL, limits that are not positive), `unavailable` (not reached),
    `deadline_exceeded` (not complete after `timeout` seconds), `resource_exhausted` (more than `BODY_LIMIT` bytes, too
    many redirects, a page that takes more memory or time to read than it is worth), or what `Reaper.spawn` raises.
    Cancellation: the connection is closed, and the program that makes text is killed first.
    """
    if max_chars < 0 or not timeout > 0:
        raise CallError("invalid_argument", "max_chars cannot be negative, and timeout must be positive")
    scheme, separator, _ = url.partition("://")
    if not separator:
        url = f"https://{url}"
    elif scheme.lower() not in {"http", "https"}:
        raise CallError("invalid_argument", "only http and https URLs can be fetched")
    shown = _without_password(url)
    with trio.move_on_after(timeout):
        tls = await trio.to_thread.run_sync(_prepare)
        response, body = await _get(url, shown, tls)
        content_type = response.headers.get("content-type", "")
        request = json.dumps([content_type, min(max_chars, BODY_LIMIT)]).encode() + b"\n" + body
        async with _making_text:
            answer = await _make_text(reaper, request, note_started)
        if answer is None:
            message = f"{shown} takes more memory or time to read than it is worth: download it with a command"
            raise CallError("resource_exhausted", message)
        text, chars = answer
        return FetchResult(
            url=_without_password(str(response.url)),
            status=response.status_code,
            content_type=content_type,
            text=text,
            chars=chars,
            bytes=len(body),
            truncated=chars > len(text),
        )
    raise CallError("deadline_exceeded", f"{shown} was not complete after {timeout:g} seconds", retryable=True)


def _without_password(url: str) -> str:
    """`url` as it may be shown: results and errors are kept, and a password in the address is nobody's business."""
    return re.sub(r"(?<=//)[^/?#]*@", "", url, count=1)


@lru_cache(maxsize=1)
def _prepare() -> ssl.SSLContext:
    """Import what is needed, and read the certificate authorities: both take their time."""
    import httpx

    return httpx.create_ssl_context()


async def _get(url: str, shown: str, tls: ssl.SSLContext) -> tuple[httpx.Response, bytes]:
    import httpx

    client = httpx.AsyncClient(
        verify=tls,
        trust_env=False,
        timeout=None,  # noqa: S113 - the caller's covers the whole
        headers=_HEADERS,
    )
    try:
        async with client:
            request: httpx.Request | None = client.build_request("GET", url)
            for _ in range(REDIRECT_LIMIT + 1):
                assert request is not None
                # Redirects are followed here, as httpx would read what comes with one without any limit.
                response = await client.send(request, stream=True)
                try:
                    request = response.next_request
                    if request is None:
                        return response, await _body(response, shown)
                finally:
                    await response.aclose()
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:  # the last for a name of no host
        raise CallError("invalid_argument", f"{shown!r} is not an HTTP address: {error}") from None
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        raise CallError("unavailable", f"{shown} could not be reached: {reason}", retryable=True) from None
    raise CallError("resource_exhausted", f"{shown} redirects more than {REDIRECT_LIMIT} times")


async def _body(response: httpx.Response, shown: str) -> bytes:
    """The body, unpacked no further than the limit: a few kilobytes can stand for gigabytes."""
    import httpx

    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity" and coding not in _GZIP:
        raise CallError("unavailable", f"{shown} packs what it sends as {coding[:60]!r}, which it was not asked for")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16) if coding in _GZIP else None
    body = bytearray()
    received = 0
    refusal: CallError | None = None
    try:
        async for piece in response.aiter_raw():
            received += len(piece)
            try:
                if unpacker is None:
                    body += piece
                elif not unpacker.eof:  # behind the end, it would keep what comes
                    body += unpacker.decompress(piece, BODY_LIMIT + 1 - len(body))
            except zlib.error as error:
                refusal = CallError("unavailable", f"{shown} sent a body that cannot be unpacked: {error}")
            if max(received, len(body)) > BODY_LIMIT:
                message = f"{shown} has more than {BODY_LIMIT} bytes: download it with a command, such as curl -O"
                refusal = CallError("resource_exhausted", message)
            if refusal is not None:
                # Not left by a break: only an error from within ends all of httpx's nested generators properly.
                await response.aclose()
    except (httpx.StreamError, httpx.TransportError):
        if refusal is None:
            raise
    if refusal is None and unpacker is not None and received and not unpacker.eof:
        refusal = CallError("unavailable", f"{shown} sent a packed body without its end")
    if refusal is not None:
        raise refusal
    return bytes(body)


async def _make_text(
    reaper: Reaper, request: bytes, note_started: Callable[[Process], None] | None
) -> tuple[str, int] | None:
    """The text that the program `page` makes, as much as is wanted, and how many characters there are.

    None if it could not. Cancellation: the program is killed.
    """
    command = [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {_PATH!r}; {_MAKE_TEXT}"]
    with memory_file("page", request) as source, output_pipe() as pipe:
        os.lseek(source, 0, os.SEEK_SET)
        process = await reaper.spawn(command, cwd="/", env={}, fds={0: source, 1: pipe.write})
        pipe.close_write()
        if note_started is not None:
            note_started(process)
        try:
            answer = await _read_all(pipe.read)
            returncode = await process.wait()
        finally:
            if process.returncode is None:
                await process.kill_tree(grace=0)
            process.release()
    chars, _, text = answer.partition(b"\n")
    if returncode != 0 or len(answer) > _ANSWER_LIMIT or len(chars) > _DIGITS or not chars.isdigit():
        return None  # the page was too much for it, or has made it say something of its own
    return text.decode("utf-8", "replace"), int(chars)


async def _read_all(descriptor: int) -> bytes:
    """All of it, or a little more than an answer can have."""
    answer = bytearray()
    while len(answer) <= _ANSWER_LIMIT:
        try:
            data = os.read(descriptor, _READ_SIZE)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(descriptor)
            continue
        if not data:
            break
        answer += data
    return bytes(answer)
