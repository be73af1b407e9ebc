"""Getting the text of a web page: GET, redirects, limits. What makes a body into text is the program `page`.

httpx is imported with the first fetch, in a thread: it takes longer than the worker's start.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.tools import FetchResult

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


async def run_fetch(url: str, *, max_chars: int = 20_000, timeout: float = 45.0) -> FetchResult:
    """GET `url` (https is assumed if it names no scheme) and give its text; an HTTP error status is a result.

    Redirects are followed, `REDIRECT_LIMIT` at most, to http and https only. No proxy is taken from the environment.
    HTML becomes readable text, other text stays as it is; what is not text is named instead of shown.

    Raises CallError: `invalid_argument` (no HTTP URL, limits that are not positive), `unavailable` (not reached),
    `deadline_exceeded` (not complete after `timeout` seconds), `resource_exhausted` (more than `BODY_LIMIT` bytes, or
    too many redirects, or a page that takes more memory or time to read than it is worth).
    Cancellation: the connection is closed, and the program that makes text is killed.
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
        text, chars = await _text(body, content_type, max_chars, shown)
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


async def _text(body: bytes, content_type: str, wanted: int, shown: str) -> tuple[str, int]:
    """The first `wanted` characters of the text in `body`, and how many it has."""
    command = [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {_PATH!r}; {_MAKE_TEXT}"]
    request = json.dumps([content_type, min(wanted, BODY_LIMIT)]).encode() + b"\n"
    async with _making_text:
        done = await trio.run_process(
            command,
            stdin=request + body,
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
            check=False,
            cwd="/",
            env={},
            start_new_session=True,  # who ends the worker with a signal to its group leaves this to the worker
            deliver_cancel=_kill,
        )
    if done.returncode != 0:
        message = f"{shown} takes more memory or time to read than it is worth: download it with a command"
        raise CallError("resource_exhausted", message)
    chars, _, text = done.stdout.partition(b"\n")
    return text.decode(), int(chars)


async def _kill(process: trio.Process) -> None:
    process.kill()
