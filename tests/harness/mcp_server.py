"""A real MCP server, written with the SDK, for tests: `python mcp_server.py stdio` or `... http PORT`.

Over HTTP it says `ready` on stdout when it listens. `TEST_SECRET` in its environment is what `secret` knows.
"""

from __future__ import annotations

import os
import sys
from typing import Literal

import anyio
from mcp.server.fastmcp import Context, FastMCP, Image

server = FastMCP("test", log_level="ERROR")
calls = 0


@server.tool()
def add(x: int, y: int = 2, *, unit: Literal["mm", "cm"] | None = None) -> str:
    """Add two numbers.

    y is 2 unless given.
    """
    return f"{x + y}{unit or ''}"


@server.tool()
def count() -> int:
    """How often this was called in this process."""
    global calls
    calls += 1
    return calls


@server.tool()
def fail(why: str) -> str:
    """Always fails."""
    raise ValueError(why)


@server.tool()
def picture() -> Image:
    return Image(data=b"\x89PNG", format="png")


@server.tool()
def environment() -> str:
    """The names in the environment, and who asked."""
    return " ".join(sorted(os.environ))


@server.tool()
def headers(context: Context) -> str:  # type: ignore[type-arg]
    """The secret header of the request that called this."""
    request = context.request_context.request
    return str(request.headers.get("x-secret")) if request else "none"


@server.tool()
def secret() -> str:
    return os.environ.get("TEST_SECRET", "")


@server.tool()
def die() -> None:
    os._exit(3)


@server.tool()
async def stall(begun: str, ended: str) -> str:
    """Says in one named pipe that it has begun, and in another when it is cancelled."""
    await anyio.to_thread.run_sync(say, begun)
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(say, ended)


def say(path: str) -> None:
    with open(path, "w") as file:
        file.write("x")


async def serve_http(port: int) -> None:
    import uvicorn

    class Uvicorn(uvicorn.Server):
        async def startup(self, sockets=None) -> None:  # type: ignore[no-untyped-def]
            await super().startup(sockets)
            print(self.servers[0].sockets[0].getsockname()[1], flush=True)

    config = uvicorn.Config(server.streamable_http_app(), host="127.0.0.1", port=port, log_level="error")
    await Uvicorn(config).serve()


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        anyio.run(serve_http, int(sys.argv[2]))
