"""A cell's budget stands still while somebody else is at work, and goes on where it stood."""

from __future__ import annotations

import trio
from trio.testing import MockClock

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


async def test_without_a_timeout_there_is_no_deadline_also_after_a_wait(autojump_clock: MockClock) -> None:
    budget = Budget(None)
    with budget.scope:
        with budget.paused():
            await trio.sleep(80_000)
        await trio.sleep(80_000)
    assert not budget.scope.cancelled_caught
