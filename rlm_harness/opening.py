"""A session's ledger, workspace and agents, opened anew, or taken up where another process has left them."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import trio

import rlm_wire
from rlm_harness.agent import Agent
from rlm_harness.compaction import CompactionPolicy
from rlm_harness.connection import connection_told
from rlm_harness.decisions import ToolPolicy
from rlm_harness.events import Emit, SessionStarted
from rlm_harness.ledger import records
from rlm_harness.ledger.history import History
from rlm_harness.ledger.setup import Setup, read_setup, write_setup
from rlm_harness.ledger.writer import Ledger, LedgerError, create_ledger, reopen_ledger
from rlm_harness.model.interface import Model
from rlm_harness.recovery import recover
from rlm_harness.secrets import Secret, UserError
from rlm_harness.skills.opening import BUILT_IN
from rlm_harness.skills.table import SkillTable
from rlm_harness.supervisor.calls import AgentCalls
from rlm_harness.supervisor.policy import Policy
from rlm_harness.supervisor.supervisor import Supervisor, open_supervisor
from rlm_harness.workspace import Workspace, local_worker_url
from rlm_wire.broker.info import LostCall

SECRET_BYTES = 32
"""Of randomness in the secret of a workspace."""


class Task(msgspec.Struct, frozen=True):
    """What to do and where. `url` None: a worker of our own, in `cwd` or else in the current directory.

    `session` None: in a new session, called `name` if there is one, which keeps `endpoint` for whoever goes on with it.
    Else the directory of the one to go on with: with `text`, or without, if there was a prompt under way.
    """

    text: str
    name: str | None = None
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


class Agents(msgspec.Struct):
    """A session with its agents at work.

    `stop` and `message` are to be set to how its last prompt ended, for those who list it.
    """

    workspace: Workspace
    ledger: Ledger
    history: History | None
    supervisor: Supervisor
    agent: Agent
    stop: str = "error"
    message: str = ""

    @property
    def lost_calls(self) -> list[LostCall]:
        """The calls that were open when the workspace was lost, if that was how it ended."""
        lost = self.workspace.lost
        return lost.calls if lost is not None and self.stop == "workspace_lost" else []


@asynccontextmanager
async def open_agents(
    task: Task,
    model: Model,
    emit: Emit,
    *,
    token: bytes | None = None,
    skills: SkillTable | None = None,
    connected: Callable[[Callable[[], None]], AbstractContextManager[None]],
) -> AsyncIterator[Agents]:
    """Open the session of `task`, with its root agent. Everything is told to `emit`, and `skills` answers cells.

    `token` is the worker's, where it needs one. While there is a connection to it, `connected` is entered with what
    gives it up. Leaving ends all agents, and closes the workspace.

    Raises UserError, WireError or OSError (from `emit`) if it could not begin or go on.
    Cancellation: ends everything at once; the ledger has what was recorded so far.
    """
    service = rlm_wire.Service()
    calls = AgentCalls(service)
    if skills is not None:
        skills.register(service)
    async with open_session(task, model.name, service, token) as opened:
        workspace, ledger, info = opened.workspace, opened.ledger, opened.workspace.info
        await ledger.write_meta(_meta(ledger, model, workspace, status="running"))
        await emit(SessionStarted(ledger.session, model.name, info.cwd, info.worker, str(ledger.path)))
        with connected(workspace.abandon):
            opening = open_supervisor(
                workspace,
                model,
                emit,
                ledger,
                calls,
                policy=task.policy,
                tool_policy=task.tool_policy,
                compaction=task.compaction,
            )
            async with connection_told(workspace.peer, emit), opening as (supervisor, agent):
                agents = Agents(workspace, ledger, opened.history, supervisor, agent)
                yield agents
        try:
            await _conclude(agents, model)
        except LedgerError as error:
            supervisor.notices.append(str(error))


async def _conclude(agents: Agents, model: Model) -> None:
    """Record how it ended. Raises LedgerError."""
    supervisor, ledger, lost = agents.supervisor, agents.ledger, agents.workspace.lost
    if lost is not None and agents.stop == "workspace_lost":
        await ledger.append(records.WorkspaceLost(reason=lost.reason, calls=lost.calls))
    done = {
        "turns": supervisor.budgets.turns,
        "usage": supervisor.usage,
        "message": agents.message,
        "lost": agents.lost_calls,
    }
    await ledger.write_meta(_meta(ledger, model, agents.workspace, status=agents.stop) | done)


def _meta(ledger: Ledger, model: Model, workspace: Workspace, *, status: str) -> dict[str, object]:
    return {
        "session": ledger.session,
        "status": status,
        "model": model.name,
        "workspace": workspace.info.cwd,
        "worker": workspace.info.worker,
        "updated_at": time.time(),
    }


@asynccontextmanager
async def open_session(task: Task, model: str, service: rlm_wire.Service, token: bytes | None) -> AsyncIterator[Opened]:
    """The session of `task`; leaving closes its workspace, and gives its ledger free.

    Raises UserError, and what `Workspace.connect` raises. Cancellation: the same.
    """
    if task.session is None:
        secret = Secret(secrets.token_urlsafe(SECRET_BYTES)) if task.url is not None else None
        async with _connected(task, service, token, secret, "") as workspace, create_ledger(name=task.name) as ledger:
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
    skills = task.policy.skills
    given = {*skills.local, *(skill.name for skill in skills.remote)}
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
        concurrency=task.policy.max_model_calls,
        allow_git=task.policy.allow_git,
        tools=tuple(task.tool_policy.tools),
        skills=tuple(name for name in BUILT_IN if name in given),
        parallel_tools=task.tool_policy.several,
        pictures=task.tool_policy.pictures,
        summarize_at=task.compaction.summarize_at,
    )
    try:
        await trio.to_thread.run_sync(write_setup, ledger.directory, setup)
    except OSError as error:
        raise UserError(f"cannot write into {ledger.directory}: {error.strerror}") from None
