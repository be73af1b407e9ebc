"""`search`: against a real HTTP server that speaks as Serper does, or does not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import trio

from rlm_harness.secrets import Secret, UserError
from rlm_harness.skills.opening import chosen, open_skills
from rlm_harness.skills.search import ANSWER_LIMIT, TIMEOUT, Found, open_serper, search_with
from rlm_wire.errors import CallError

KEY = Secret("serper-key-0123456789")


class Provider(ThreadingHTTPServer):
    """Answers every search with `status` and `body`; keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.body = b"{}"
        self.asked: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/search"


class Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.headers["X-API-KEY"], json.loads(body)))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.serve_forever, args=[0.01])
    thread.start()
    yield provider
    provider.shutdown()
    thread.join()
    provider.server_close()


async def search(provider: Provider, **arguments: Any) -> str:
    async with open_serper(KEY, provider.url) as serper:
        return await search_with(serper)(arguments)


async def test_results_are_listed_and_the_key_is_sent_to_the_provider_only(provider: Provider) -> None:
    results = [
        {"title": f"T{n}", "link": f"https://x/{n}", "snippet": "about" if n else "", "more": 1} for n in range(9)
    ]
    provider.body = json.dumps({"organic": results, "answerBox": {}}).encode()
    assert await search(provider, query="what", num_results=2) == "1. T0\nhttps://x/0\n\n2. T1\nhttps://x/1\nabout"
    assert (await search(provider, query="what")).count("https://") == 5
    assert provider.asked == [(KEY.reveal(), {"q": "what", "num": number}) for number in (2, 5)]
    provider.body = rb'{"organic":[{"title":"half \ud800","link":"https://x"}]}'
    assert await search(provider, query="what") == "1. half \ufffd\nhttps://x"
    provider.body = b"{}"
    assert await search(provider, query="nothing") == "No results for 'nothing'"


@pytest.mark.parametrize(
    ("status", "body", "reason", "retryable"),
    [
        (403, b"no " + KEY.reveal().encode(), "does not accept the harness's key", False),
        (429, b"", "HTTP 429", True),
        (500, b"x", "HTTP 500", True),
        (302, b"", "HTTP 302", False),
        (200, b"<html>", "not what its interface promises", False),
        (200, b'{"organic": [1]}', "not what its interface promises", False),
        (200, b"[" * 100_000, "not what its interface promises", False),
        (200, b" " * (ANSWER_LIMIT + 1), "too large", False),
    ],
)
async def test_an_answer_that_is_none_is_unavailable(
    provider: Provider, status: int, body: bytes, reason: str, retryable: bool
) -> None:
    provider.status, provider.body = status, body
    with pytest.raises(CallError, match=reason) as caught:
        await search(provider, query="what")
    assert (caught.value.code, caught.value.retryable) == ("unavailable", retryable)
    assert KEY.reveal() not in str(caught.value)


async def test_a_provider_that_is_not_there_is_unavailable() -> None:
    async with open_serper(KEY, "http://127.0.0.1:1/") as serper:
        with pytest.raises(CallError, match="was not reached") as caught:
            await search_with(serper)({"query": "what"})
    assert caught.value.retryable


@pytest.mark.parametrize(
    "arguments", [{}, {"query": " "}, {"query": 1}, {"query": "a", "num_results": 0}, {"query": "a", "page": 1}]
)
async def test_arguments_that_do_not_fit_are_refused(provider: Provider, arguments: dict[str, Any]) -> None:
    with pytest.raises(CallError) as caught:
        await search(provider, **arguments)
    assert caught.value.code == "invalid_argument"
    assert provider.asked == []


class Silent:
    async def search(self, query: str, num_results: int) -> list[Found]:
        await trio.sleep_forever()
        return []


async def test_a_search_takes_no_longer_than_its_time(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(CallError, match="longer than 45 s") as caught:
        await search_with(Silent())({"query": "what"})
    assert caught.value.code == "deadline_exceeded"
    assert trio.current_time() == pytest.approx(TIMEOUT, abs=1)


def test_the_search_is_there_if_it_has_a_key() -> None:
    assert chosen(None, None) == ["bash", "edit", "fetch"]
    assert chosen(None, KEY) == ["bash", "edit", "fetch", "search"]
    assert chosen([], KEY) == []
    with pytest.raises(UserError, match="set SERPER_API_KEY"):
        chosen(["search"], None)
    with pytest.raises(UserError, match="there is no skill 'dig'; the skills are bash, edit, fetch, search"):
        chosen(["dig"], None)


async def test_a_session_has_the_skills_that_were_chosen(provider: Provider) -> None:
    async with open_skills(["edit", "search"], key=KEY, search_url=provider.url) as table:
        skills = table.skills()
        assert (skills.local, [skill.name for skill in skills.remote]) == (["edit"], ["search"])
