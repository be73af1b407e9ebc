"""A cell's budget stands still while somebody else is at work, and goes on where it stood."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import trio
from trio.testing import MockClock

from rlm_wire.methods.base import Request
from rlm_worker.kernel import Callbacks, open_kernels
from rlm_worker.kernel.budget import Budget


async def test_the_time_of_waits_is_not_counted_and_that_of_overlapping_ones_once(autojump_clock: MockClock) -> None:
    budget = Budget(10)
    start = trio.current_time()

    async def wait(first: float, then: float) -> None:
        await trio.sleep(first)
        with budget.paused():
            await trio.sleep(then)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 2, 100)
        nursery.start_soon(wait, 50, 60)  # until 110
        nursery.start_soon(wait, 111, 1000)
        with budget.scope:
            await trio.sleep_forever()
        assert trio.current_time() - start == 2 + 1 + 7 + (110 - 2) + 1000
    assert budget.scope.cancelled_caught


async def test_a_wait_that_is_too_long_uses_the_time_up_whatever_else_is_waited_for(autojump_clock: MockClock) -> None:
    budget = Budget(10)
    start = trio.current_time()
    with budget.scope, budget.paused():
        for _ in range(3):
            with budget.paused(10):
                await trio.sleep(9)
        with budget.paused(10):
            await trio.sleep_forever()
    assert trio.current_time() - start == 27 + 10
    assert budget.scope.cancelled_caught


async def test_without_a_timeout_there_is_no_deadline_also_after_a_wait(autojump_clock: MockClock) -> None:
    budget = Budget(None)
    with budget.scope:
        with budget.paused():
            await trio.sleep(80_000)
        await trio.sleep(80_000)
    assert not budget.scope.cancelled_caught


class Wait(Request[None], tag="test.wait"):
    pass


class Observed(Callbacks):
    """Shows the budget of the cell that runs."""

    budget: Budget

    @contextmanager
    def open(self, scope: str, agent: str, budget: Budget, caller: str | None) -> Iterator[Mapping[str, int]]:
        self.budget = budget
        with super().open(scope, agent, budget, caller) as skill_calls:
            yield skill_calls


@pytest.mark.parametrize("call", ["rlm.call('test.wait')", "await rlm.call('test.wait')"])
def test_a_cell_that_waits_for_a_callback_is_not_charged_and_else_it_is(workshop, call):
    async def run() -> None:
        started, go = trio.Event(), trio.Event()
        callbacks = Observed()

        @callbacks.handle(Wait)
        async def wait(agent: str, request: Wait) -> None:
            started.set()
            await go.wait()

        async with (
            open_kernels(workshop.host, workshop.reaper, cwd="/", env={}, callbacks=callbacks) as kernels,
            trio.open_nursery() as nursery,
        ):
            cell = kernels.cell("a", call, timeout=1000)
            nursery.start_soon(cell.run)
            await started.wait()
            assert callbacks.budget.scope.deadline == math.inf
            go.set()
        assert cell.result.status == "ok"
        assert callbacks.budget.scope.deadline < trio.current_time() + 1000

    workshop.run(run)


def test_a_cell_that_goes_on_after_a_callback_uses_its_time_up(workshop):
    async def run() -> None:
        callbacks = Callbacks()

        @callbacks.handle(Wait)
        async def wait(agent: str, request: Wait) -> None:
            await trio.lowlevel.checkpoint()

        async with open_kernels(workshop.host, workshop.reaper, cwd="/", env={}, callbacks=callbacks) as kernels:
            result = await kernels.execute("a", "rlm.call('test.wait')\nimport time; time.sleep(3600)", timeout=0.3)
        assert result.status == "timed_out"

    workshop.run(run)
