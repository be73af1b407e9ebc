"""One reaper and one warm kernel host for all tests of a module, in a Trio run of its own thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from rlm_wire.methods.kernels import CellResult
from rlm_worker.kernel import KernelHost, Kernels, open_kernel_host, open_kernels
from rlm_worker.processes import Reaper, open_reaper

T = TypeVar("T")

PATIENCE = 60.0
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8"}


class Workshop:
    """A Trio run in a thread of its own, with what kernels need; `run` is for the test's thread."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.reaper: Reaper
        self.host: KernelHost
        self.kernels: Kernels
        self._token: trio.lowlevel.TrioToken
        self._ready = threading.Event()
        self._stop: trio.Event
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main)
        self._thread.start()
        self._ready.wait(PATIENCE)
        if self._failure:
            raise self._failure

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function there, for at most PATIENCE seconds."""

        async def bounded() -> T:
            with trio.fail_after(PATIENCE):
                return await function(*args)

        return trio.from_thread.run(bounded, trio_token=self._token)

    def close(self) -> None:
        trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        self._thread.join(PATIENCE)
        if self._failure:
            raise self._failure

    def _main(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as failure:  # noqa: BLE001  raised again in the test's thread
            self._failure = failure
            self._ready.set()

    async def _serve(self) -> None:
        async with (
            open_reaper() as self.reaper,
            open_kernel_host(self.reaper, env=ENVIRONMENT) as self.host,
            open_kernels(self.host, self.reaper, cwd=str(self.cwd), env=ENVIRONMENT) as self.kernels,
        ):
            self._token = trio.lowlevel.current_trio_token()
            self._stop = trio.Event()
            self._ready.set()
            await self._stop.wait()


class Agent:
    """One agent of the test: `agent("1 + 1")` runs a cell."""

    def __init__(self, workshop: Workshop, name: str) -> None:
        self.workshop = workshop
        self.name = name

    def __call__(self, code: str, *, timeout: float | None = 30.0) -> CellResult:
        async def execute() -> CellResult:
            return await self.workshop.kernels.execute(self.name, code, timeout=timeout)

        return self.workshop.run(execute)

    def ok(self, code: str) -> CellResult:
        """Run a cell that must succeed."""
        result = self(code)
        assert result.status == "ok", result
        return result

    def close(self) -> None:
        self.workshop.run(self.workshop.kernels.close, self.name)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path_factory.mktemp("workspace"))
    yield workshop
    workshop.close()


@pytest.fixture
def agent(workshop: Workshop, request: pytest.FixtureRequest) -> Iterator[Agent]:
    agent = Agent(workshop, request.node.name)
    yield agent
    agent.close()


@pytest.fixture
def other_agent(workshop: Workshop, request: pytest.FixtureRequest) -> Iterator[Agent]:
    agent = Agent(workshop, f"{request.node.name}, the other")
    yield agent
    agent.close()
