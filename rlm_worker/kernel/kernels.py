"""The kernels of one session, by agent: what the worker's service calls."""

from __future__ import annotations

import functools
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Final

import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.kernels import CellResult, KernelVariables
from rlm_wire.methods.skills import Skills
from rlm_worker.kernel.budget import Budget
from rlm_worker.kernel.callbacks import Callbacks
from rlm_worker.kernel.cells import Cell, OnOutput
from rlm_worker.kernel.lane import Lane
from rlm_worker.kernel.process import KernelProcess
from rlm_worker.kernel.supply import KernelHost
from rlm_worker.processes import Reaper
from rlm_worker.roster import Owner, Roster

SCOPE_BYTES: Final = 24
"""Of randomness in a scope: nobody guesses it."""

Outfit = Callable[[str], tuple[Skills | None, bool]]
"""What the kernels of an agent get: its skills, and whether git commands in its cells are looked at."""


def _nothing(agent: str) -> tuple[Skills | None, bool]:
    return None, False


class Kernels:
    """Made by `open_kernels`."""

    def __init__(
        self,
        host: KernelHost,
        cwd: str,
        env: Mapping[str, str],
        callbacks: Callbacks,
        roster: Roster,
        outfit: Outfit,
        nursery: trio.Nursery,
    ) -> None:
        self._host = host
        self._roster = roster
        self._cwd = cwd
        self._env = dict(env)
        self._callbacks = callbacks
        self._outfit = outfit
        self._nursery = nursery
        self._lanes: dict[str, Lane] = {}

    def cell(
        self,
        agent: str,
        code: str,
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        scope: str | None = None,
        caller: str | None = None,
        ledger_size: int | None = None,
    ) -> Cell:
        """A cell for `agent`'s kernel, which is started when it is first needed. See `Cell` for how to run it.

        `timeout` in seconds, from when the cell starts, without the time that its callbacks take. `on_output` gets live
        output while it runs, in order. `scope` is the cell's own (None: one is made up), `caller` that of the cell
        which this one is run for, if any; `ledger_size` as in `Execute`. Raises CallError("invalid_argument") for a
        timeout that is not positive, else as `Callbacks.check_new`.
        """
        if timeout is not None and not timeout > 0:
            raise CallError("invalid_argument", f"a timeout must be positive, not {timeout}")
        scope = scope or secrets.token_urlsafe(SCOPE_BYTES)
        self._callbacks.check_new(scope, agent, caller)
        lane = self._lanes.get(agent)
        if lane is None:
            lane = self._lanes[agent] = Lane(functools.partial(self._start, agent))

        def opened(budget: Budget) -> AbstractContextManager[Mapping[str, int]]:
            return self._callbacks.open(scope, agent, budget, caller)

        return Cell(lane.run, code, timeout, on_output, scope, opened, ledger_size)

    async def execute(
        self, agent: str, code: str, *, timeout: float | None = None, on_output: OnOutput | None = None
    ) -> CellResult:
        """Run a cell and give its result, for callers that need no partial one. Arguments as `cell`.

        Cancellation: interrupts the cell; takes up to INTERRUPT_GRACE, then its kernel is killed.
        """
        cell = self.cell(agent, code, timeout=timeout, on_output=on_output)
        await cell.run()
        return cell.result

    async def inspect(self, agent: str) -> KernelVariables:
        """What `agent`'s kernel holds, also while a cell runs; nothing if it has none.

        Raises CallError("unavailable") if the kernel cannot answer. Cancellation: harmless.
        """
        lane = self._lanes.get(agent)
        return KernelVariables() if lane is None else await lane.inspect()

    def interrupt(self, agent: str) -> bool:
        """Interrupt the cell that `agent` runs; False if it runs none."""
        lane = self._lanes.get(agent)
        return lane is not None and lane.interrupt()

    async def close(self, agent: str) -> None:
        """End `agent`'s kernel and what is attached to it; harmless if it has none. A busy kernel is killed.

        Cancellation: the kernel is killed, not left running.
        """
        lane = self._lanes.pop(agent, None)
        if lane is not None:
            await lane.close()

    async def _start(self, agent: str) -> KernelProcess:
        kernel = await self._host.kernel()
        self._roster.add(kernel.process, Owner(agent, "kernel"))
        await self._nursery.start(kernel.run, self._callbacks.service(agent))
        try:
            await kernel.enter(self._cwd, self._env, *self._outfit(agent))
        except BaseException:
            kernel.kill()
            raise
        return kernel

    async def close_all(self) -> None:
        """`close` for every agent, at once."""
        async with trio.open_nursery() as nursery:
            for agent in list(self._lanes):
                nursery.start_soon(self.close, agent)


@asynccontextmanager
async def open_kernels(
    host: KernelHost,
    reaper: Reaper,
    *,
    cwd: str,
    env: Mapping[str, str],
    callbacks: Callbacks | None = None,
    roster: Roster | None = None,
    outfit: Outfit = _nothing,
) -> AsyncIterator[Kernels]:
    """The kernels of one session, started in `cwd` with exactly `env`. Leaving closes them all.

    `callbacks` is what their cells may call (None: nothing), `roster` is told of their processes, `outfit` says by the
    agent's name what a fresh kernel gets.
    Cancellation: kills them.
    """
    async with trio.open_nursery() as nursery:
        kernels = Kernels(host, cwd, env, callbacks or Callbacks(), roster or Roster(reaper), outfit, nursery)
        try:
            yield kernels
            await kernels.close_all()
        finally:
            nursery.cancel_scope.cancel()
