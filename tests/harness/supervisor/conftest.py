"""A session with a supervisor: real kernels in one worker, a scripted model, a real ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.actors import Actors, Opened

import rlm_wire
from rlm_harness.agent import Agent
from rlm_harness.decisions import ToolPolicy
from rlm_harness.ledger.writer import create_ledger
from rlm_harness.supervisor.calls import AgentCalls
from rlm_harness.supervisor.policy import Policy
from rlm_harness.supervisor.supervisor import Supervisor, open_supervisor
from rlm_harness.workspace import Workspace


@pytest.fixture
def opened(worker_url: str, tmp_path: Path, events: Any) -> Opened:
    @asynccontextmanager
    async def open_root(
        model: Actors, tool_policy: ToolPolicy | None = None, url: str = worker_url, **policy: Any
    ) -> AsyncIterator[tuple[Supervisor, Agent]]:
        service = rlm_wire.Service()
        calls = AgentCalls(service)
        async with (
            Workspace.connect(url, cwd=str(tmp_path), service=service) as workspace,
            create_ledger(tmp_path / "sessions") as ledger,
            open_supervisor(
                workspace, model, events.emit, ledger, calls, policy=Policy(**policy), tool_policy=tool_policy
            ) as both,
        ):
            yield both

    return open_root
