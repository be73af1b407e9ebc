"""What MCP servers are configured by and describe their tools with: files and schemas, right and wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from rlm_harness.mcp_servers.answers import ANSWER_LIMIT, TOO_LARGE, AnswersTransport
from rlm_harness.mcp_servers.configuration import FILE_LIMIT, HttpServer, StdioServer, read_mcp_file
from rlm_harness.mcp_servers.schemas import parameters_untrusted
from rlm_harness.secrets import UserError
from rlm_wire.methods.skills import Parameter


def read(tmp_path: Path, content: Any) -> list[Any]:
    path = tmp_path / "mcp.json"
    path.write_text(content if isinstance(content, str) else json.dumps({"mcpServers": content}))
    return list(read_mcp_file(str(path)))


def test_servers_are_read_as_other_programs_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEST_KEY", "TEST_PLACE"):
        monkeypatch.setenv(name, name.lower())
    one, two = read(
        tmp_path,
        {
            "one": {
                "command": "npx",
                "args": ["-y", "${TEST_PLACE}/server", "${TEST_NONE:-x}"],
                "env": {"KEY": "${TEST_KEY}", "HOME": "${HOME}"},
                "autoApprove": [],
            },
            "two": {"type": "http", "url": "https://host/${TEST_PLACE}", "headers": {"Authorization": "B ${TEST_KEY}"}},
        },
    )
    assert isinstance(one, StdioServer)
    assert (one.name, one.command, one.arguments) == ("one", "npx", ["-y", "test_place/server", "x"])
    assert {name: value.reveal() for name, value in one.env.items()} == {"KEY": "test_key", "HOME": os.environ["HOME"]}
    assert isinstance(two, HttpServer)
    assert (two.url, two.headers["Authorization"].reveal()) == ("https://host/test_place", "B test_key")
    assert "TEST_KEY" not in os.environ  # a secret: children of ours would inherit it
    assert "TEST_PLACE" in os.environ
    assert "test_key" not in repr([one, two])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", 'should be {"mcpServers"'),
        ('{"servers": {}}', "mcpServers"),
        ({"a": 1}, "'a' .* does not fit"),
        ({"a": {}}, "'a' .* either a command or a url"),
        ({"a": {"command": "x", "url": "http://x"}}, "'a' .* either a command or a url"),
        ({"a": {"command": ["x"]}}, "'a' .* does not fit: Expected `str | null`, got `array` - at `\\$.command`"),
        ({"a": {"command": "x", "env": {"A": 1}}}, "'a' .* does not fit"),
        ({"a": {"command": " "}}, "'a' .* cannot be run"),
        ({"a": {"command": "x", "env": {"A=B": "x"}}}, "'a' .* no environment can hold"),
        ({"a": {"command": "x\0y"}}, "'a' .* command: cannot be run"),
        ({"a": {"command": "x", "args": ["y", "sesame\0"]}}, "'a' .* args: .* NUL"),
        ({"a": {"command": "x", "env": {"A\0": "x"}}}, "'a' .* no environment can hold"),
        ({"a": {"command": "x", "env": {"A": "sesame\0"}}}, "'a' .* no environment can hold"),
        ({"a": {"command": "x", "cwd": "/\0"}}, "'a' .* cwd: .* NUL"),
        ({"a": {"type": "sse", "url": "http://x"}}, "'sse'"),
        ({"a": {"url": "ftp://x"}}, "'a' .* not http"),
        ({"a": {"url": "http:///x"}}, "'a' .* not http"),
        ({"a": {"url": "http://\0/"}}, "'a' .* not http"),
        ({"a": {"url": "http://x:99999/"}}, "'a' .* not http"),
        ({"a": {"url": f"http://{'a' * 64}.b/"}}, "'a' .* not http"),
        ({"a": {"url": "http://x", "headers": {"A B": "x"}}}, "'a' .* header that HTTP cannot carry"),
        ({"a": {"url": "http://x", "headers": {"A": " sesame"}}}, "'a' .* header that HTTP cannot carry"),
        ({"a": {"url": "http://x", "headers": {"Content-Length": "3"}}}, "'a' .* header that HTTP cannot carry"),
        ({"a": {"url": "http://x", "headers": {"A": "sesame\n"}}}, "'a' .* header that HTTP cannot carry"),
        ({"a": {"url": "http://x", "headers": {"A": "${TEST_NOT_SET}"}}}, "'a' .* variable TEST_NOT_SET, which is not"),
        ({f"a{number}": {"command": "x"} for number in range(65)}, "65 MCP servers; a session can have 64"),
        ("x" * (FILE_LIMIT + 1), "larger than 1 MiB"),
    ],
)
def test_a_file_that_does_not_fit_says_what_to_mend(tmp_path: Path, content: Any, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        read(tmp_path, content)
    assert "sesame" not in str(caught.value)
    assert "mcp.json" in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json: No such file"):
        read_mcp_file(str(tmp_path / "none.json"))


def test_a_schema_is_shown_as_python_would_write_it() -> None:
    schema = {
        "type": "object",
        "required": ["a", "when"],
        "properties": {
            "a": {"type": "string", "description": "the first"},
            "b": {"type": "array", "items": {"type": "integer"}, "default": [1]},
            "c": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            "d": {"enum": ["x", "y"]},
            "e": {"type": ["string", "null"]},
            "f": {"$ref": "#/$defs/F"},
            "g": {"$ref": "#/$defs/G"},
            "h": {"default": 10**30},
            "when": {"const": 1},
        },
        "$defs": {"F": {"type": "object"}, "G": {"type": "array", "items": {"$ref": "#/$defs/G"}}},
    }
    deep = "list[list[Any]]"
    assert parameters_untrusted(schema) == (
        [
            Parameter("a", "str", description="the first"),
            Parameter("b", "list[int]", required=False, default=[1]),
            Parameter("c", "float | None", required=False, nullable=True),
            Parameter("d", "Literal['x', 'y']", required=False),
            Parameter("e", "str | None", required=False, nullable=True),
            Parameter("f", "dict", required=False),
            Parameter("g", deep, required=False),
            Parameter("h", "Any", required=False, nullable=True),
            Parameter("when", "Literal[1]"),
        ],
        False,
    )
    assert parameters_untrusted({"additionalProperties": True}) == ([], True)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["object", "#/$defs/a", "a", "array"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "items", "properties", "$ref", "$defs", "anyOf", "enum", "required", "default", "a"]
            ),
            inner,
        )
    ),
    max_leaves=20,
)


@given(values)
def test_no_schema_is_too_strange(schema: Any) -> None:
    parameters_untrusted(schema)


REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
NOTIFICATION = {"jsonrpc": "2.0", "method": "notifications/initialized"}
EVENT = b'event: message\r\ndata: {"jsonrpc": "2.0", "id": 1, "result": {}}\r\n\r\n'
PROGRESS = b': ping\n\nid: 1\ndata: {"jsonrpc": "2.0",\ndata: "method": "notifications/progress", "params": {}}\n\n'


@pytest.mark.parametrize(
    ("kind", "pieces", "answer"),
    [
        ("text/event-stream", [PROGRESS, EVENT], b'{"jsonrpc": "2.0", "id": 1, "result": {}}\n'),
        ("text/event-stream", [bytes([byte]) for byte in EVENT], b'{"jsonrpc": "2.0", "id": 1, "result": {}}\n'),
        ("application/json; charset=utf-8", [b'{"id": 1, "error"', b": {}}"], b'{"id": 1, "error": {}}'),
        ("text/event-stream", [PROGRESS], None),
        ("text/event-stream", [b"data: {\n\n", b"data: [" * 100_000, b"\n\n"], None),
        ("application/json", [b"[" * 100_000], None),
        ("application/json", [], None),
    ],
)
async def test_the_answer_to_a_request_is_read_whole_or_said_to_be_lost(
    kind: str, pieces: list[bytes], answer: bytes | None
) -> None:
    lost: list[str] = []
    transport = AnswersTransport(lost.append, httpx.MockTransport(lambda _: respond(kind, pieces)))
    async with httpx.AsyncClient(transport=transport) as client:
        if answer is None:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post("http://x/", json=REQUEST)
            assert lost == ["it ended without an answer, or gave one that is none"]
        else:
            response = await client.post("http://x/", json=REQUEST)
            assert (response.content, response.headers["content-type"]) == (answer, "application/json")
            assert lost == []


@pytest.mark.parametrize(
    ("status", "kind", "answered"),
    [
        (200, "text/html; charset=utf-8", "text/html"),
        (200, "x" * 500, "x" * 100),
        (200, "", "HTTP 200 and nothing"),
        (202, "", "HTTP 202 and nothing"),
    ],
)
async def test_what_can_be_no_answer_is_told_at_once(status: int, kind: str, answered: str) -> None:
    lost: list[str] = []
    response = httpx.Response(status, headers={"content-type": kind} if kind else {}, content=b"<html>")
    transport = AnswersTransport(lost.append, httpx.MockTransport(lambda _: response))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("http://x/", json=REQUEST)
        assert lost == [f"it answered with {answered}, not with a message of MCP: is the url right?"]
        response.status_code = 200
        assert (await client.post("http://x/", json=NOTIFICATION)).content == b""  # needs none
    assert len(lost) == 1


async def test_the_answer_from_where_a_request_was_sent_on_to_is_taken() -> None:
    def serve(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/":
            return httpx.Response(307, headers={"location": "/mcp"})
        return respond("text/event-stream", [EVENT])

    transport = AnswersTransport(lambda _: None, httpx.MockTransport(serve))
    async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
        assert (await client.post("http://x/", json=REQUEST)).json()["id"] == 1


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_message_beyond_the_limit_is_answered_by_an_error_as_soon_as_it_is(kind: str) -> None:
    lost: list[str] = []
    taken = 0

    async def endless():  # type: ignore[no-untyped-def]
        nonlocal taken
        while True:
            await trio.lowlevel.checkpoint()
            taken += 1 << 20
            yield b"data: " + b"x" * ((1 << 20) - 6)

    response = httpx.Response(200, headers={"content-type": kind}, content=endless())
    transport = AnswersTransport(lost.append, httpx.MockTransport(lambda _: response))
    async with httpx.AsyncClient(transport=transport) as client:
        answer = await client.post("http://x/", json={"jsonrpc": "2.0", "id": 7, "method": "tools/call"})
    message = "sent a message of more than 32 MiB"
    assert answer.json() == {"jsonrpc": "2.0", "id": 7, "error": {"code": TOO_LARGE, "message": message}}
    assert lost == []
    assert taken == ANSWER_LIMIT + (1 << 20)


@pytest.mark.parametrize(
    ("method", "status", "asked"),
    [
        ("GET", 200, None),
        ("DELETE", 200, None),
        ("POST", 202, NOTIFICATION),
        ("POST", 200, {"jsonrpc": "2.0", "id": 1, "result": {}}),
        ("POST", 500, REQUEST),
    ],
)
async def test_what_is_no_answer_is_not_read(method: str, status: int, asked: Any) -> None:
    async def hostile():  # type: ignore[no-untyped-def]
        yield b"data: "
        raise AssertionError("it was read")

    response = httpx.Response(status, headers={"content-type": "text/event-stream"}, content=hostile())
    transport = AnswersTransport(lambda _: None, httpx.MockTransport(lambda _: response))
    async with httpx.AsyncClient(transport=transport) as client:
        taken = await client.request(method, "http://x/", json=asked)
    assert (taken.status_code, taken.content) == (405 if method == "GET" else status, b"")


def respond(kind: str, pieces: list[bytes]) -> httpx.Response:
    async def body():  # type: ignore[no-untyped-def]
        for piece in pieces:
            yield piece

    return httpx.Response(200, headers={"content-type": kind}, content=body())
