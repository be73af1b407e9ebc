"""When a service counts as ready: a port accepts, a URL answers, or a line of its log says so."""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable

import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.services import Ready
from rlm_worker.jobs.output import READ_SIZE, KeptOutput

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
"""Seconds between attempts to connect, doubling. A system tells nobody that somebody listens now: one has to try."""

ATTEMPT_TIMEOUT = 5.0
"""Seconds for one attempt: a server that accepts and says nothing is not ready."""

_STATUS_LINE_LIMIT = 1024
_LINE_LIMIT = 64 * 1024

Check = Callable[[KeptOutput, int], Awaitable[None]]
"""Returns once ready, given the output and where this run's begins. Cancellation: nothing happens."""


def check_for(ready: Ready) -> Check:
    """How to wait for it. Raises CallError("invalid_argument") unless exactly one way is given, and that one right."""
    if sum(value is not None for value in (ready.port, ready.http, ready.log)) != 1:
        raise CallError("invalid_argument", "a readiness check has exactly one of port, http and log")
    if ready.log is not None:
        return _log_check(ready.log)
    host, port, request = _target(ready)

    async def answers(output: KeptOutput, start: int) -> None:
        pause = FIRST_PAUSE
        while not await _attempt(host, port, request):
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    return answers


async def check_free(ready: Ready) -> None:
    """Raise CallError("failed_precondition") if something answers there already: it would pass for the service."""
    if ready.log is None:
        host, port, _ = _target(ready)
        if await _attempt(host, port, b""):
            message = f"something listens on port {port} already: stop it, or choose another port"
            raise CallError("failed_precondition", message)


def _target(ready: Ready) -> tuple[str, int, bytes]:
    """Where to connect and what to ask there: nothing, if accepting is enough."""
    if ready.port is not None:
        if not 1 <= ready.port <= 65535:
            raise CallError("invalid_argument", f"a port is a number from 1 to 65535, not {ready.port}")
        return "127.0.0.1", ready.port, b""
    try:
        url = urllib.parse.urlsplit(ready.http or "")
        port = url.port or 80
    except ValueError as error:
        raise CallError("invalid_argument", f"{ready.http!r} is no URL: {error}") from None
    if url.scheme != "http" or not url.hostname or not ready.http or not ready.http.isprintable() or " " in ready.http:
        raise CallError("invalid_argument", f"a readiness check asks a plain http:// URL, not {ready.http!r}")
    path = urllib.parse.quote(url.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{url.query}" if url.query else "")
    request = f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\nAccept: */*\r\n\r\n"
    return url.hostname, port, request.encode("ascii", "replace")


async def _attempt(host: str, port: int, request: bytes) -> bool:
    """Whether it accepts; if there is a `request`, whether it answers with a status below 400."""
    try:
        with trio.fail_after(ATTEMPT_TIMEOUT):
            async with await trio.open_tcp_stream(host, port) as stream:
                if not request:
                    return True
                await stream.send_all(request)
                answer = b""
                while b"\n" not in answer and len(answer) < _STATUS_LINE_LIMIT:
                    more = await stream.receive_some(_STATUS_LINE_LIMIT)
                    if not more:
                        return False
                    answer += more
    except (OSError, trio.BrokenResourceError, trio.TooSlowError):
        return False
    words = answer.split(None, 2)
    return len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() and 200 <= int(words[1]) < 400


def _log_check(text: str) -> Check:
    if not text or "\n" in text:
        raise CallError("invalid_argument", "the text to look for in the log is part of one line, and not empty")
    wanted = text.encode("utf-8", "surrogateescape")

    async def appears(output: KeptOutput, start: int) -> None:
        seen = b""
        while True:
            await output.wait_beyond(start)
            piece = await output.read(start, READ_SIZE)
            if piece.done and not piece.data:
                await trio.sleep_forever()  # it has ended, and whoever waits for that says so
            seen = (seen.rpartition(b"\n")[2] if not piece.skipped else b"")[-_LINE_LIMIT:] + piece.data
            if wanted in seen:
                return
            start = piece.next_cursor

    return appears
