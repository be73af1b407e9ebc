"""What holds for every test: a bound on async tests, and nothing left behind by a module's tests."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

TEST_TIMEOUT = 60.0
"""Seconds after which an async test hangs. Not a speed limit: machines are shared."""

_PR_SET_CHILD_SUBREAPER = 36


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            virtual = {"mock_clock", "autojump_clock"} & set(item.fixturenames)
            if not virtual:
                item.obj = _bounded(item.obj)


def _bounded(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        with trio.fail_after(TEST_TIMEOUT):
            await test(*args, **kwargs)

    return bounded


@pytest.fixture(scope="session", autouse=True)
def _adopt_orphans() -> None:
    """Processes whose parent died become our children, so that they can be seen."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[str]:
    """Living descendants of this process, dead children reaped."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                break
        except ChildProcessError:
            break
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue  # gone meanwhile
        if state != "Z":
            parents[int(path.parent.name)] = int(parent)
    return [f"{pid}: {_command_line(pid)}" for pid in parents if _descends(pid, parents)]


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid := parents.get(pid, 0):
        if pid == os.getpid():
            return True
    return False


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "gone meanwhile"


def _sockets() -> set[str]:
    links = set()
    for path in Path("/proc/self/fd").iterdir():
        try:
            target = str(path.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            links.add(target)
    return links


@pytest.fixture(scope="module", autouse=True)
def _leaves_nothing_behind(_adopt_orphans: None, request: pytest.FixtureRequest) -> Iterator[None]:
    sockets = _sockets()
    assert not _children(), "an earlier module left processes"
    yield
    deadline = time.monotonic() + 10
    while _children() and time.monotonic() < deadline:
        os.sched_yield()
    assert not _children(), f"{request.node.nodeid} left processes"
    assert _sockets() <= sockets, f"{request.node.nodeid} left sockets open"
