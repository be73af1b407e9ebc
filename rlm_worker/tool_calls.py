"""The tools as an agent of a session has them: in its directory and environment, under its git rule.

The harness calls them for the agent (`service`), and so do the agent's cells, as skills (`callbacks`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.skills import LocalSkill
from rlm_wire.methods.tools import Bash, BashResult, Edit, EditResult, Fetch, FetchResult, OutputChunk
from rlm_worker.environment import checked_environment
from rlm_worker.roster import Owner
from rlm_worker.tools.bash import Stoppable, run_bash
from rlm_worker.tools.edit import run_edit
from rlm_worker.tools.fetch import run_fetch

if TYPE_CHECKING:
    from rlm_worker.sessions import Agent, Session


async def bash(
    session: Session,
    request: Bash,
    *,
    on_output: Callable[[OutputChunk], Awaitable[None]] | None = None,
    stoppable: Stoppable = trio.CancelScope,
) -> BashResult:
    agent = session.agent(request.agent)
    session.check_command(agent.name, request.command)
    env = {**session.env, **checked_environment(request.env or {})}
    with agent.call(command=True):
        return await run_bash(
            session.reaper,
            request.command,
            cwd=str(Path(session.cwd, request.cwd or "")),
            env=env,
            # A directory that was asked for must be there; the agent's own may have been removed by a command.
            fallback_directory=None if request.cwd else session.fallback_directory,
            timeout=request.timeout,
            on_output=on_output,
            stoppable=stoppable,
            note_started=lambda process: session.roster.add(process, Owner(agent.name, "command")),
        )


async def edit(session: Session, request: Edit) -> EditResult:
    with session.agent(request.agent).call():
        return await run_edit(request.path, request.old, request.new, cwd=session.cwd)


async def fetch(session: Session, request: Fetch) -> FetchResult:
    agent = session.agent(request.agent)
    with agent.call():
        return await run_fetch(
            session.reaper,
            request.url,
            max_chars=request.max_chars,
            timeout=request.timeout,
            note_started=lambda process: session.roster.add(process, Owner(agent.name, "command")),
        )


def check_skill(agent: Agent, skill: LocalSkill) -> None:
    """Raises CallError("permission_denied") if its cells do not have the skill."""
    if skill not in agent.skills.local:
        raise CallError("permission_denied", f"the cells of this agent have no skill {skill!r}")
