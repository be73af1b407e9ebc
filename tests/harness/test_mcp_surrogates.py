"""Halves of characters in what an MCP server says become U+FFFD: calls are answered, and answers can be passed on."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trio
from mcp.types import TextContent

from rlm_harness.mcp_servers.configuration import HttpServer, McpServer, StdioServer
from rlm_harness.mcp_servers.link import Link

ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "half \ud800", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "say", "description": "Says \udc00.", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "a\ud800b\U0001f600 \\ud800"}]},
}


def answer_to(line: bytes) -> bytes:
    """The answer to a request to an MCP server that has one tool; none to a notification."""
    asked = json.loads(line)
    if "id" not in asked:
        return b""
    return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": ANSWERS[asked["method"]]}).encode()


class Handler(BaseHTTPRequestHandler):
    events = False

    def do_POST(self) -> None:
        answer = answer_to(self.rfile.read(int(self.headers["Content-Length"])))
        body = b"data: " + answer + b"\n\n" if self.events and answer else answer
        self.send_response(200 if answer else 202)
        self.send_header("Content-Type", "text/event-stream" if self.events else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=["stdio", "json", "events"])
def server(request: pytest.FixtureRequest) -> Iterator[McpServer]:
    if request.param == "stdio":
        yield StdioServer("test", sys.executable, [__file__], {})
        return
    handler = type("OneHandler", (Handler,), {"events": request.param == "events"})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=[0.01])
        thread.start()
        yield HttpServer("test", f"http://127.0.0.1:{http.server_address[1]}/mcp", {})
        http.shutdown()
        thread.join()


async def test_what_an_mcp_server_says_has_no_halves_of_characters(server: McpServer) -> None:
    async with trio.open_nursery() as nursery:
        link = Link(server)
        with trio.fail_after(60):
            await nursery.start(link.run)
            (tool,) = await link.tools(10)
            result = await link.call("say", {})
        link.close()
    assert (tool.name, tool.description) == ("say", "Says \ufffd.")
    assert [part.text for part in result.content if isinstance(part, TextContent)] == ["a\ufffdb\U0001f600 \\ud800"]


if __name__ == "__main__":  # the server over stdio
    for asked in sys.stdin.buffer:
        if answered := answer_to(asked):
            sys.stdout.buffer.write(answered + b"\n")
            sys.stdout.buffer.flush()
