"""A session's ledger and its workspace, opened anew, or taken up where another process has left them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

import rlm_wire
from rlm_harness.compaction import CompactionPolicy
from rlm_harness.decisions import ToolPolicy
from rlm_harness.ledger.history import History
from rlm_harness.ledger.setup import Setup, read_setup, write_setup
from rlm_harness.ledger.writer import Ledger, create_ledger, reopen_ledger
from rlm_harness.recovery import recover
from rlm_harness.secrets import Secret, UserError
from rlm_harness.supervisor.policy import Policy
from rlm_harness.workspace import Workspace, local_worker_url

SECRET_BYTES = 32
"""Of randomness in the secret of a workspace."""


class Task(msgspec.Struct, frozen=True):
    """What to do and where. `url` None: a worker of our own, in `cwd` or else in the current directory.

    `session` None: in a new session, which keeps `endpoint` for whoever goes on with it. Else the directory of the one
    to go on with: with `text`, or without, if there was a prompt under way.
    """

    text: str
    url: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    policy: Policy = Policy()
    tool_policy: ToolPolicy = ToolPolicy()
    compaction: CompactionPolicy = CompactionPolicy()
    session: Path | None = None
    endpoint: str = ""


class Opened(msgspec.Struct, frozen=True):
    """`history` is what the ledger held already, None in a new session."""

    workspace: Workspace
    ledger: Ledger
    history: History | None


@asynccontextmanager
async def open_session(task: Task, model: str, service: rlm_wire.Service, token: bytes | None) -> AsyncIterator[Opened]:
    """The session of `task`; leaving closes its workspace, and gives its ledger free.

    Raises UserError, and what `Workspace.connect` raises. Cancellation: the same.
    """
    if task.session is None:
        secret = Secret(secrets.token_urlsafe(SECRET_BYTES)) if task.url is not None else None
        async with _connected(task, service, token, secret, "") as workspace, create_ledger() as ledger:
            await _write(task, model, workspace, ledger, secret)
            yield Opened(workspace, ledger, None)
        return
    async with reopen_ledger(task.session) as (ledger, history):
        if not task.text and recover(history).prompt is None:
            raise UserError(f"nothing is under way in session {ledger.session}: say what it is to do next")
        setup = await trio.to_thread.run_sync(read_setup, task.session)
        secret = Secret(setup.secret) if setup is not None and setup.secret else None
        adopt = setup.workspace if setup is not None else ""
        async with _connected(task, service, token, secret, adopt) as workspace:
            await _write(task, model, workspace, ledger, secret)
            yield Opened(workspace, ledger, history)


@asynccontextmanager
async def _connected(
    task: Task, service: rlm_wire.Service, token: bytes | None, secret: Secret | None, adopt: str
) -> AsyncIterator[Workspace]:
    url = task.url or local_worker_url()
    cwd = task.cwd if task.url else str(Path.cwd() / (task.cwd or ""))
    async with Workspace.connect(url, token, cwd, task.env, service=service, secret=secret, adopt=adopt) as workspace:
        yield workspace


async def _write(task: Task, model: str, workspace: Workspace, ledger: Ledger, secret: Secret | None) -> None:
    setup = Setup(
        model=model,
        base_url=task.endpoint,
        url=task.url,
        cwd=workspace.info.cwd,
        workspace=workspace.info.workspace,
        secret=secret.reveal() if secret is not None else "",
        max_depth=task.policy.max_depth,
        max_agents=task.policy.max_subagents,
        max_turns=task.policy.max_turns,
        max_tokens=task.policy.max_tokens,
        allow_git=task.policy.allow_git,
        tools=tuple(task.tool_policy.tools),
        parallel_tools=task.tool_policy.several,
        summarize_at=task.compaction.summarize_at,
    )
    try:
        await trio.to_thread.run_sync(write_setup, ledger.directory, setup)
    except OSError as error:
        raise UserError(f"cannot write into {ledger.directory}: {error.strerror}") from None
