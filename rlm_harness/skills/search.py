"""`search` in cells: a web search whose key stays here. Who finds is behind `SearchProvider`; Serper is one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Final, Protocol

import httpx
import msgspec
import trio

from rlm_harness.secrets import Secret
from rlm_harness.skills.table import Run
from rlm_harness.surrogates import decode
from rlm_wire.errors import CallError
from rlm_wire.methods.skills import Parameter, RemoteSkill

SERPER: Final = "https://google.serper.dev/search"

TIMEOUT: Final = 45.0
"""Seconds for one search."""

ANSWER_LIMIT: Final = 1 << 20
"""Bytes of a provider's answer: a hundred results are far smaller."""

SKILL: Final = RemoteSkill(
    "search",
    "Search the web. Gives titles, addresses and excerpts; `fetch` gets a page.",
    [
        Parameter("query", "str", description="what you would type into a search engine"),
        Parameter("num_results", "int", required=False, default=5, description="1 to 20"),
    ],
)


class Found(msgspec.Struct, frozen=True):
    title: str
    url: str
    excerpt: str = ""


class SearchProvider(Protocol):
    async def search(self, query: str, num_results: int) -> list[Found]:
        """The best results, best first, at most `num_results`. Raises CallError. Cancellation: ends the request."""
        ...


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    num_results: Annotated[int, msgspec.Meta(ge=1, le=20)] = 5


def search_with(provider: SearchProvider) -> Run:
    """What answers `SKILL`."""

    async def run(arguments: dict[str, Any]) -> str:
        try:
            asked = msgspec.convert(arguments, _Arguments)
        except msgspec.ValidationError as error:
            raise CallError("invalid_argument", f"the arguments of search do not fit: {error}") from None
        if not asked.query.strip():
            raise CallError("invalid_argument", "the query is empty")
        with trio.move_on_after(TIMEOUT):
            return _listing(asked.query, (await provider.search(asked.query, asked.num_results))[: asked.num_results])
        raise CallError("deadline_exceeded", f"the search took longer than {TIMEOUT:g} s", retryable=True)

    return run


def _listing(query: str, found: list[Found]) -> str:
    if not found:
        return f"No results for {query!r}"
    return "\n\n".join(
        "\n".join(filter(None, [f"{number}. {result.title}", result.url, result.excerpt]))
        for number, result in enumerate(found, 1)
    )


class _Result(msgspec.Struct):
    title: str = ""
    link: str = ""
    snippet: str = ""


class _Answer(msgspec.Struct):
    organic: list[_Result] = []


class Serper:
    """Made by `open_serper`."""

    def __init__(self, client: httpx.AsyncClient, url: str, key: Secret) -> None:
        self._client = client
        self._url = url
        self._key = key

    async def search(self, query: str, num_results: int) -> list[Found]:
        try:
            status, body = await self._ask({"q": query, "num": num_results})
        except (httpx.TransportError, httpx.DecodingError) as error:
            reason = self._key.redact(str(error)) or type(error).__name__
            raise CallError("unavailable", f"the search provider was not reached: {reason}", retryable=True) from None
        if len(body) > ANSWER_LIMIT:
            raise CallError("unavailable", "the search provider's answer is too large")
        if status in (401, 403):
            raise CallError("unavailable", "the search provider does not accept the harness's key")
        if status != 200:
            message = f"the search provider answered with HTTP {status}"
            raise CallError("unavailable", message, retryable=status == 429 or status >= 500)
        return _decode_untrusted(body)

    async def _ask(self, request: dict[str, Any]) -> tuple[int, bytes]:
        """Status and body of the answer; of a body that is too large, so much as shows it."""
        headers = {"X-API-KEY": self._key.reveal()}
        body = bytearray()
        async with self._client.stream("POST", self._url, json=request, headers=headers) as response:
            with suppress(httpx.StreamError):
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > ANSWER_LIMIT:  # closed, not left by a break: that ends httpx's generators in order
                        await response.aclose()
            return response.status_code, bytes(body)


_ANSWER: Final = msgspec.json.Decoder(_Answer)


def _decode_untrusted(body: bytes) -> list[Found]:
    try:
        answer = decode(_ANSWER, body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise CallError("unavailable", "the search provider's answer is not what its interface promises") from None
    return [Found(result.title, result.link, result.snippet) for result in answer.organic]


@asynccontextmanager
async def open_serper(key: Secret, url: str = SERPER) -> AsyncIterator[Serper]:
    """A search provider. Leaving closes its connections."""
    async with httpx.AsyncClient(timeout=TIMEOUT) as client:
        yield Serper(client, url, key)
