"""An agent that may not use all of git: every way to start a command, and what the model is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlm_harness import AgentTools, Workspace
from rlm_wire.errors import CallError
from rlm_wire.methods.skills import Skills

BLOCKED = "blocked git command: 'fetch' is not for use here"


@pytest.fixture
async def agent(worker_url: str, tmp_path: Path) -> AsyncIterator[AgentTools]:
    async with (
        Workspace.connect(worker_url, cwd=str(tmp_path)) as workspace,
        workspace.agent(skills=Skills(["bash"]), allow_git=False) as agent,
    ):
        yield agent


async def test_commands_of_tools_jobs_and_services_are_refused(agent: AgentTools, tmp_path: Path) -> None:
    for refused in (
        agent.bash("touch made; git fetch"),
        agent.jobs.run("touch made; git fetch"),
        agent.jobs.run(["git", "fetch"]),
        agent.services.start("s", "touch made; git fetch"),
    ):
        with pytest.raises(CallError, match=BLOCKED) as caught:
            await refused
        assert caught.value.code == "permission_denied"
    assert not (tmp_path / "made").exists()
    result = await agent.bash("git init -q . && git status --short && echo fine", timeout=60)
    assert result.output.text == "fine\n"


@pytest.mark.parametrize(
    "cell",
    [
        "open('made', 'w')\n!git fetch",
        "open('made', 'w')\nx = !git fetch",
        "%%bash\ntouch made\ngit fetch",
        "%sx git fetch",
        "open('made', 'w')\nimport subprocess\nsubprocess.run(['git', 'fetch'])",
        "open('made', 'w')\nawait bash('git fetch')",
    ],
)
async def test_a_cell_with_such_a_command_is_not_run(agent: AgentTools, tmp_path: Path, cell: str) -> None:
    result = await agent.ipython(cell, timeout=60)
    assert result.status == "error"
    assert result.error is not None
    assert result.error.name == "PermissionError"
    assert result.error.traceback.startswith(f"PermissionError: {BLOCKED}")
    assert not (tmp_path / "made").exists()


async def test_what_a_cell_puts_together_is_refused_when_it_is_run(agent: AgentTools) -> None:
    code = "command = 'git ' + 'fetch'\ntry: {}\nexcept PermissionError as error: print(error)"
    for call in ("rlm.shell.run(command)", "await rlm.shell.run(command)", "bash(command)"):
        cell = await agent.ipython(code.format(call), timeout=60)
        assert cell.output.text.startswith(f"permission_denied: {BLOCKED}"), cell
    assert (await agent.ipython("import os; os._exit(1)", timeout=60)).status == "kernel_died"
    assert (await agent.ipython("!git fetch", timeout=60)).error is not None  # in a fresh kernel, too


async def test_without_the_rule_git_is_git(worker_url: str, tmp_path: Path) -> None:
    async with Workspace.connect(worker_url, cwd=str(tmp_path)) as workspace, workspace.agent() as agent:
        assert (await agent.bash("git init -q . && git remote && git branch -a", timeout=60)).exit_code == 0
        assert (await agent.ipython("!git remote\nx = !git tag\nx", timeout=60)).result == "[]"
