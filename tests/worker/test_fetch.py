"""Fetching from a real HTTP server on loopback."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.tools import FetchResult
from rlm_worker.processes import Process, Reaper
from rlm_worker.tools.fetch import BODY_LIMIT, run_fetch

PAGES = {
    "/page": ("text/html", b"<html><head><title>T</title></head><body><h1>Head</h1><p>One &amp; two</body></html>"),
    "/header": ("text/html; charset=iso-8859-2", "<p>\u0142\u00f3d\u017a".encode("iso-8859-2")),
    "/meta": (
        "text/html",
        b"<meta http-equiv='Content-Type' content='text/html; charset=windows-1251'><p>\xcc\xe8\xf0",
    ),
    "/unknown": ("text/plain; charset=klingon", "\u00fc".encode()),
    "/marked": ("text/plain", b"\xff\xfea\0"),
    "/plain": ("text/plain", b"a <b>\r\n c\n"),
    "/json": ("application/json", b'{"a": "\xc3\xbc"}'),
    "/untyped": ("", b"just text"),
    "/image": ("image/png", b"\x89PNG\r\n\x1a\n\0\0"),
    "/long": ("text/plain", b"0123456789" * 10),
    "/empty": ("text/html", b""),
    "/deep": ("text/html", b"<div>" * 3000 + b"deep"),
    "/punycode": ("text/plain; charset=punycode", b"a-" + b"b" * 300_000),
    "/table": ("text/html", b"<table>" + b"<tr><td>x" * 300_000),
    "/tall": ("text/html", b"<div style='margin-top: 100000em'>x</div>" * 20_000),
}


BOMB_IN_BOMB = gzip.compress(gzip.compress(bytes(50 * BODY_LIMIT)))
"""A few kilobytes that stand for half a gigabyte."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Server = self.server  # type: ignore[assignment]
        if self.path in PAGES:
            self._answer(200, *PAGES[self.path])
        elif self.path.startswith("/redirect/"):
            left = int(self.path.rpartition("/")[2])
            self._redirect(f"/redirect/{left - 1}" if left else "/plain")
        elif self.path == "/to-file":
            self._redirect("file:///etc/passwd")
        elif self.path == "/missing":
            self._answer(404, "text/plain", b"nothing here")
        elif self.path == "/packed":
            self._answer(200, "text/plain", gzip.compress(b"unpacked"), ("Content-Encoding", "gzip"))
        elif self.path == "/bomb":
            self._answer(200, "text/plain", gzip.compress(bytes(BODY_LIMIT * 3)), ("Content-Encoding", "gzip"))
        elif self.path == "/bomb-in-bomb":
            self._answer(200, "text/plain", BOMB_IN_BOMB, ("Content-Encoding", "gzip, gzip"))
        elif self.path == "/bomb-on-the-way":
            self._answer(302, "text/plain", BOMB_IN_BOMB, ("Content-Encoding", "gzip, gzip"), ("Location", "/plain"))
        elif self.path == "/torn":
            self._answer(200, "text/plain", gzip.compress(b"unpacked")[:-4], ("Content-Encoding", "gzip"))
        elif self.path == "/garbled":
            self._answer(200, "text/plain", b"not packed" * 10_000, ("Content-Encoding", "gzip"))
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            server.until_reset(self)
        elif self.path == "/silent":
            server.asked.set()
            server.closing.wait(60)

    def _redirect(self, location: str) -> None:
        self._answer(302, "text/plain", b"", ("Location", location))

    def _answer(self, status: int, content_type: str, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        if content_type:
            self.send_header("Content-Type", content_type)
        self.end_headers()
        try:
            self.wfile.write(body)
        except ConnectionError:
            return

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        return


class Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.closing = threading.Event()
        self.asked = threading.Event()
        self.sent = 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def until_reset(self, handler: Handler) -> None:
        try:
            while not self.closing.is_set():
                self.sent += handler.wfile.write(bytes(65536))
        except ConnectionError:
            return


Fetch = Callable[..., Awaitable[FetchResult]]


@pytest.fixture
def fetch(reaper: Reaper) -> Fetch:
    return partial(run_fetch, reaper)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.closing.set()
        server.shutdown()
        thread.join()


async def test_html_becomes_readable_text(fetch: Fetch, server: Server) -> None:
    result = await fetch(f"{server.url}/page")
    assert (result.status, result.content_type, result.truncated) == (200, "text/html", False)
    assert [line.strip() for line in result.text.splitlines() if line.strip()] == ["Head", "One & two"]
    assert result.chars == len(result.text)
    assert result.bytes == len(PAGES["/page"][1])


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/header", "\u0142\u00f3d\u017a"),
        ("/meta", "\u041c\u0438\u0440"),
        ("/unknown", "\u00fc"),
        ("/marked", "a"),
        ("/plain", "a <b>\r\n c\n"),
        ("/json", '{"a": "\u00fc"}'),
        ("/untyped", "just text"),
        ("/packed", "unpacked"),
        ("/empty", ""),
    ],
)
async def test_text_arrives_in_the_right_encoding(fetch: Fetch, server: Server, path: str, text: str) -> None:
    assert (await fetch(server.url + path)).text == text


async def test_what_is_no_text_is_named(fetch: Fetch, server: Server) -> None:
    result = await fetch(f"{server.url}/image")
    assert result.text == "[10 bytes of image/png, not text: download it with a command]"


async def test_long_text_is_cut_and_its_length_told(fetch: Fetch, server: Server) -> None:
    result = await fetch(f"{server.url}/long", max_chars=25)
    assert (result.text, result.chars, result.truncated) == ("0123456789012345678901234", 100, True)


async def test_a_page_nested_beyond_reason_is_no_failure(fetch: Fetch, server: Server) -> None:
    assert "deep" in (await fetch(f"{server.url}/deep")).text


async def test_an_error_status_is_a_result(fetch: Fetch, server: Server) -> None:
    result = await fetch(f"{server.url}/missing")
    assert (result.status, result.text) == (404, "nothing here")


async def test_ten_redirects_are_followed_and_no_more(fetch: Fetch, server: Server) -> None:
    result = await fetch(f"{server.url}/redirect/9")
    assert (result.url, result.text) == (f"{server.url}/plain", "a <b>\r\n c\n")
    with pytest.raises(CallError, match="more than 10 times") as refused:
        await fetch(f"{server.url}/redirect/10")
    assert refused.value.code == "resource_exhausted"


@pytest.mark.parametrize("path", ["/endless", "/bomb"])
async def test_a_body_beyond_the_limit_is_refused_on_the_way(fetch: Fetch, server: Server, path: str) -> None:
    with pytest.raises(CallError, match="download it") as refused:
        await fetch(server.url + path)
    assert refused.value.code == "resource_exhausted"
    assert server.sent < BODY_LIMIT * 3


async def test_a_bomb_in_a_bomb_is_never_unpacked(server: Server) -> None:
    code = (
        "import sys, trio\n"
        "from rlm_wire.errors import CallError\n"
        "from rlm_worker.processes import open_reaper\n"
        "from rlm_worker.tools.fetch import run_fetch\n"
        "async def fetch(url):\n"
        "    async with open_reaper() as reaper: return await run_fetch(reaper, url)\n"
        "try: print(trio.run(fetch, sys.argv[1]).status)\n"
        "except CallError as error: print(error.code)\n"
        "status = open('/proc/self/status').read()\n"  # the peak of this program, not of the one that started it
        "print(status.partition('VmHWM:')[2].split()[0])"
    )
    for path, outcome in (("/bomb-in-bomb", "unavailable"), ("/bomb-on-the-way", "200")):
        done = await trio.run_process([sys.executable, "-c", code, server.url + path], capture_stdout=True)
        said, kilobytes = done.stdout.decode().split()
        assert said == outcome
        assert int(kilobytes) < 200_000


@pytest.mark.parametrize("path", ["/torn", "/garbled"])
async def test_a_body_that_cannot_be_unpacked_is_no_result(fetch: Fetch, server: Server, path: str) -> None:
    with pytest.raises(CallError, match="packed") as refused:
        await fetch(server.url + path)
    assert refused.value.code == "unavailable"


async def test_a_page_that_takes_for_ever_to_read_is_contained_and_given_up_in_time(
    fetch: Fetch, server: Server, reaper: Reaper
) -> None:
    started: list[Process] = []
    with pytest.raises(CallError) as late:
        await fetch(f"{server.url}/table", timeout=2, note_started=started.append)
    assert late.value.code == "deadline_exceeded"
    assert all(process.ended for process in started)
    assert await reaper.running() == []
    async with trio.open_nursery() as nursery:
        found = trio.Event()
        nursery.start_soon(partial(fetch, f"{server.url}/table", note_started=lambda _: found.set()))
        await found.wait()
        (running,) = await reaper.running()
        assert running.role == "root"
        nursery.cancel_scope.cancel()
    assert await reaper.running() == []


async def test_a_page_that_takes_gigabytes_to_read_is_refused(fetch: Fetch, server: Server) -> None:
    with pytest.raises(CallError, match="more memory or time") as refused:
        await fetch(f"{server.url}/tall")
    assert refused.value.code == "resource_exhausted"


async def test_a_charset_that_is_none_is_not_used(fetch: Fetch, server: Server) -> None:
    with trio.fail_after(20):
        assert (await fetch(f"{server.url}/punycode", max_chars=3)).text == "a-b"


@pytest.mark.parametrize("host", ["a" * 300, "xn--a", "..", "a..b", "[::1%25" + "a" * 300 + "]"])
async def test_what_can_be_no_host_is_refused(fetch: Fetch, host: str) -> None:
    with pytest.raises(CallError, match="not an HTTP address") as refused:
        await fetch(f"http://{host}/")
    assert refused.value.code == "invalid_argument"


async def test_a_password_in_the_address_is_not_repeated(fetch: Fetch, server: Server) -> None:
    secret = server.url.replace("http://", "http://user:p4ss@")
    assert (await fetch(f"{secret}/plain")).url == f"{server.url}/plain"
    for url in ("http://user:p4ss@127.0.0.1:9/", "http://user:p4ss@[::zz]/", f"{secret}/redirect/10", f"{secret}/bomb"):
        with pytest.raises(CallError) as refused:
            await fetch(url)
        assert "p4ss" not in str(refused.value)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "FTP://127.0.0.1/"])
async def test_another_scheme_is_refused_with_those_that_will_do(fetch: Fetch, url: str) -> None:
    with pytest.raises(CallError, match=r"^invalid_argument: only http and https URLs can be fetched$"):
        await fetch(url)


async def test_only_http_is_spoken(fetch: Fetch, server: Server) -> None:
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/", "http://", "http://[::1", f"{server.url}/to-file"):
        with pytest.raises(CallError) as refused:
            await fetch(url)
        assert refused.value.code == "invalid_argument", url


async def test_who_is_not_there_is_unavailable(fetch: Fetch, server: Server) -> None:
    with pytest.raises(CallError) as refused:
        await fetch("http://127.0.0.1:9/")
    assert (refused.value.code, refused.value.retryable) == ("unavailable", True)
    with pytest.raises(CallError) as wrong_protocol:
        await fetch(server.url.replace("http:", "https:"))
    assert wrong_protocol.value.code == "unavailable"


async def test_a_silent_server_is_given_up(fetch: Fetch, server: Server) -> None:
    with pytest.raises(CallError) as late:
        await fetch(f"{server.url}/silent", timeout=0.2)
    assert late.value.code == "deadline_exceeded"


async def test_a_cancelled_fetch_ends_at_once(fetch: Fetch, server: Server) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, f"{server.url}/silent")
        await trio.to_thread.run_sync(server.asked.wait)
        nursery.cancel_scope.cancel()


async def test_proxies_of_the_environment_are_not_used(
    fetch: Fetch, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert (await fetch(f"{server.url}/plain")).status == 200


@pytest.mark.parametrize(("max_chars", "timeout"), [(-1, 1.0), (1, 0.0), (1, float("nan"))])
async def test_senseless_limits_are_refused(fetch: Fetch, max_chars: int, timeout: float) -> None:
    with pytest.raises(CallError) as refused:
        await fetch("http://127.0.0.1:9/", max_chars=max_chars, timeout=timeout)
    assert refused.value.code == "invalid_argument"
