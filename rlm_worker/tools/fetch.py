"""Getting the text of a web page: GET, redirects, limits, and HTML made readable.

httpx and inscriptis are imported with the first fetch, in a thread: together they take longer than the worker's start.
"""

from __future__ import annotations

import re
import ssl
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

_HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; rlm-worker)", "Accept": "text/html, text/*;q=0.9, */*;q=0.5"}
_HTML = {"text/html", "application/xhtml+xml"}
_META_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_META_REACH = 2048
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


async def run_fetch(url: str, *, max_chars: int = 20_000, timeout: float = 45.0) -> FetchResult:
    """GET `url` (https is assumed if it names no scheme) and give its text; an HTTP error status is a result.

    Redirects are followed, `REDIRECT_LIMIT` at most, to http and https only. No proxy is taken from the environment.
    HTML becomes readable text, other text stays as it is; what is not text is named instead of shown.

    Raises CallError: `invalid_argument` (no HTTP URL, limits that are not positive), `unavailable` (not reached),
    `deadline_exceeded` (not complete after `timeout` seconds), `resource_exhausted` (more than `BODY_LIMIT` bytes, or
    too many redirects).
    Cancellation: the connection is closed; waits for a conversion that runs in a thread, bounded by `BODY_LIMIT`.
    """
    if max_chars < 0 or not timeout > 0:
        raise CallError("invalid_argument", "max_chars cannot be negative, and timeout must be positive")
    if "://" not in url:
        url = f"https://{url}"
    with trio.move_on_after(timeout):
        tls = await trio.to_thread.run_sync(_prepare)
        response, body = await _get(url, tls)
        content_type = response.headers.get("content-type", "")
        text = await trio.to_thread.run_sync(_text, body, content_type)
        return FetchResult(
            url=str(response.url),
            status=response.status_code,
            content_type=content_type,
            text=text[:max_chars],
            chars=len(text),
            bytes=len(body),
            truncated=len(text) > max_chars,
        )
    raise CallError("deadline_exceeded", f"{url} was not complete after {timeout:g} seconds", retryable=True)


@lru_cache(maxsize=1)
def _prepare() -> ssl.SSLContext:
    """Import what is needed, and read the certificate authorities: both take their time."""
    import httpx
    import inscriptis  # type: ignore[import-untyped]  # noqa: F401

    return httpx.create_ssl_context()


async def _get(url: str, tls: ssl.SSLContext) -> tuple[httpx.Response, bytes]:
    import httpx

    client = httpx.AsyncClient(
        verify=tls,
        trust_env=False,
        follow_redirects=True,
        max_redirects=REDIRECT_LIMIT,
        timeout=None,  # noqa: S113 - the caller's covers the whole
        headers=_HEADERS,
    )
    try:
        async with client, client.stream("GET", url) as response:
            return response, await _body(response)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise CallError("invalid_argument", f"{url!r} is not an HTTP address: {error}") from None
    except httpx.TooManyRedirects:
        message = f"{url} redirects more than {REDIRECT_LIMIT} times"
        raise CallError("resource_exhausted", message) from None
    except httpx.DecodingError as error:
        raise CallError("unavailable", f"{url} sent a body that cannot be unpacked: {error}") from None
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        raise CallError("unavailable", f"{url} could not be reached: {reason}", retryable=True) from None


async def _body(response: httpx.Response) -> bytes:
    import httpx

    body = bytearray()
    too_large = False
    try:
        async for piece in response.aiter_bytes():
            body += b"" if too_large else piece
            if len(body) > BODY_LIMIT and not too_large:
                too_large = True
                # Not left by a break: only an error from within ends all of httpx's nested generators properly.
                await response.aclose()
    except (httpx.StreamError, httpx.TransportError):
        if not too_large:
            raise
    if too_large:
        message = f"{response.url} has more than {BODY_LIMIT} bytes: download it with a command, such as curl -O"
        raise CallError("resource_exhausted", message)
    return bytes(body)


def _text(body: bytes, content_type: str) -> str:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in _HTML:
        return _readable(_decoded(body, content_type, html=True))
    if _is_binary(body, media_type):
        return f"[{len(body)} bytes of {media_type or 'unknown type'}, not text: download it with a command]"
    return _decoded(body, content_type, html=False)


def _is_binary(body: bytes, media_type: str) -> bool:
    if media_type.startswith("text/") or any(body.startswith(mark) for mark in _BYTE_ORDER_MARKS):
        return False
    if b"\0" in body:
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return True
    return False


def _decoded(body: bytes, content_type: str, *, html: bool) -> str:
    """The text in the first encoding that is named: by a byte order mark, the header, or the page itself."""
    declared = re.search(r"""charset\s*=\s*["']?([^\s"';]+)""", content_type, re.IGNORECASE)
    within = _META_CHARSET.search(body[:_META_REACH]) if html else None
    named = [name for mark, name in _BYTE_ORDER_MARKS.items() if body.startswith(mark)]
    named += [declared[1]] if declared else []
    named += [within[1].decode("ascii")] if within else []
    for name in named:
        try:
            return body.decode(name, "replace")
        except (LookupError, ValueError):  # unknown, or no encoding of text
            continue
    return body.decode("utf-8", "replace")


def _readable(page: str) -> str:
    from inscriptis import get_text

    try:
        text = str(get_text(page)).strip()
    except (RecursionError, ValueError):
        text = ""
    return text or page  # nested beyond all reason, or made by scripts only: the source is better than nothing
