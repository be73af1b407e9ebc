"""Clients and sessions of the protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness.acp.client import Client, contract

OpenClient = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def open_client(tmp_path: Path) -> OpenClient:
    @asynccontextmanager
    async def opened(*arguments: str, initialize: bool = True, **environment: str) -> AsyncIterator[Client]:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "rlm_harness", "acp", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"RLM_HOME": str(tmp_path / "home")} | environment,
        )
        client = Client(process)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.receive)
                if initialize:
                    await client.ask("initialize", protocolVersion=1)
                yield client
                assert process.stdin is not None
                await process.stdin.aclose()
                with trio.fail_after(20):
                    await client.ended.wait()
                    assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    return opened


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    return tmp_path / "w"


NewSession = Callable[..., Any]


@pytest.fixture
def new_session(workdir: Path, model_server: Any) -> NewSession:
    """Opens a session with a contract; the session's id."""

    async def opened(client: Client, *, cwd: str = str(workdir), servers: Any = (), **changes: Any) -> str:
        asked = contract(model_server.base_url, **changes)
        meta = {"ai.prime.rlm/runtime-v1": asked}
        answer = await client.ask("session/new", cwd=cwd, mcpServers=list(servers), _meta=meta)
        return str(answer["sessionId"])

    return opened
