"""One fixture over every transport: `endpoint` opens a server and hands out what it takes to connect."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from contract import calculator

import rlm_wire

TOKEN = "a token that nobody guesses"


class Endpoint:
    """A running server; `connect()` opens a session with it."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.token = token

    def connect(
        self, service: rlm_wire.Service | None = None, codec: str | None = None
    ) -> AbstractAsyncContextManager[rlm_wire.Peer]:
        return rlm_wire.connect(self.url, service, self.token, codec=codec)


@asynccontextmanager
async def open_endpoint(kind: str, directory: Path) -> AsyncIterator[Endpoint]:
    if kind == "stdio":
        yield Endpoint(f"stdio:{shlex.join([sys.executable, calculator.__file__])}", None)
        return
    url = {
        "memory": "memory:contract",
        "unix": f"unix:{directory / 'socket'}",
        "tcp": "tcp://127.0.0.1:0",
        "tls": "tls://127.0.0.1:0",
    }[kind]
    token = TOKEN if kind in ("tcp", "tls") else None
    async with rlm_wire.serve(url, calculator.service, token) as server:
        yield Endpoint(server.urls[0], token)


@pytest.fixture(params=["memory", "unix", "tcp", "tls", "stdio"])
async def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Endpoint]:
    async with open_endpoint(request.param, tmp_path) as opened:
        yield opened
