"""Runs the demo in a fresh workspace, and then judges it: by the tests, and by what is left behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from rlm_harness.demo.processes import leftovers
from rlm_harness.demo.script import SCRIPT, TASK
from rlm_harness.events import Emit, SessionEnded, Verdict
from rlm_harness.model.scripted import ScriptedModel
from rlm_harness.opening import Task
from rlm_harness.secrets import UserError
from rlm_harness.session import Interrupts, exit_code, run_task
from rlm_harness.workspace import Workspace, local_worker_url

PROJECT = Path(__file__).parent / "project"

MARKER = "RLM_DEMO_WORKSPACE"
"""In the environment of whatever runs in the workspace, so that it can be recognised wherever it goes."""


async def run_demo(emit: Emit) -> int:
    """Play the script and give the exit code: 0 only if the tests pass, the session answered and nothing runs on.

    Raises UserError or WireError if it cannot begin. Cancellation: ends the session and removes the workspace.
    """
    missing = [name for name in ("pytest", "IPython") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"the demo needs {' and '.join(missing)}: run `make demo`, or install rlm-wire[dev]")
    interrupts = Interrupts(emit)
    directory = await trio.to_thread.run_sync(_make_workspace)
    try:
        ended = await interrupts.run(partial(_play, directory, emit, interrupts))
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(shutil.rmtree, directory, ignore_errors=True))
    return exit_code(ended, interrupts)


async def _play(directory: Path, emit: Emit, interrupts: Interrupts) -> SessionEnded:
    environment = _environment(directory)
    task = Task(TASK, cwd=str(directory), env=environment)
    ended = await run_task(task, ScriptedModel(SCRIPT), emit, interrupts)
    if ended.stop == "cancelled":
        return ended
    green, tests = await _run_tests(directory, environment)
    untouched = await trio.to_thread.run_sync(_tests_untouched, directory)
    running = await trio.to_thread.run_sync(leftovers, directory, f"{MARKER}={directory}")
    findings = [
        f"tests: {tests} (a run of the harness's own, exit code {'0' if green else 'not 0'})",
        f"the project's tests are {'as they were' if untouched else 'not what they were'}",
        f"processes left: {'; '.join(running) or 'none'}",
        f"ledger: {ended.ledger}",
    ]
    passed = ended.stop == "answered" and green and untouched and not running
    await emit(Verdict(passed, findings))
    return ended if passed else _failed(ended)


def _failed(ended: SessionEnded) -> SessionEnded:
    return SessionEnded("error", ended.answer, ended.turns, ended.usage, ended.duration, ended.ledger)


async def _run_tests(directory: Path, environment: dict[str, str]) -> tuple[bool, str]:
    """Whether the tests pass now, and pytest's own summary; in a worker that the model never saw."""
    connection = Workspace.connect(local_worker_url(), cwd=str(directory), env=environment)
    async with connection as workspace, workspace.agent() as tools:
        result = await tools.bash("python -m pytest", timeout=60)
    return result.exit_code == 0, (result.output.text.strip().splitlines() or ["no output"])[-1]


def _environment(directory: Path) -> dict[str, str]:
    return {
        # `python` is this interpreter's, which has pytest, whatever the user's shell would find.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        # An edit within the same second and of the same size would otherwise run the old bytecode.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        MARKER: str(directory),
    }


def _make_workspace() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="rlm-demo-")).resolve()
    for source in PROJECT.rglob("*"):
        if source.is_file():
            target = _target(directory, source)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
    return directory


def _target(directory: Path, source: Path) -> Path:
    return directory / source.relative_to(PROJECT).with_name(source.name.removesuffix(".txt"))


def _tests_untouched(directory: Path) -> bool:
    sources = (PROJECT / "tests").iterdir()
    return all(_target(directory, source).read_bytes() == source.read_bytes() for source in sources)
