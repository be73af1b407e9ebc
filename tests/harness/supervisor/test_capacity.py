"""Who is served when: on Trio's virtual clock."""

import pytest
import trio

from rlm_harness.supervisor.capacity import AGEING, ModelSlots, Places


class Line:
    """Callers of one `ModelSlots`, each holding its slot until it is told to leave it."""

    def __init__(self, nursery, limit):
        self.slots = ModelSlots(limit)
        self.served = []
        self._nursery = nursery
        self._leave = {}
        self._scopes = {}

    async def come(self, name, depth=0):
        self._leave[name] = trio.Event()
        self._nursery.start_soon(self._call, name, depth)
        await trio.testing.wait_all_tasks_blocked()

    async def _call(self, name, depth):
        with trio.CancelScope() as self._scopes[name]:
            async with self.slots.slot(depth):
                self.served.append(name)
                await self._leave[name].wait()

    async def leave(self, *names):
        for name in names:
            self._leave[name].set()
        await trio.testing.wait_all_tasks_blocked()

    async def give_up(self, *names):
        for name in names:
            self._scopes[name].cancel()
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def line(autojump_clock):
    async with trio.open_nursery() as nursery:
        yield Line(nursery, 1)
        nursery.cancel_scope.cancel()


async def test_at_most_so_many_are_served_and_then_in_order(line):
    for name in "abc":
        await line.come(name)
    assert line.served == ["a"]
    await line.leave("a")
    await line.leave("b")
    assert line.served == ["a", "b", "c"]


async def test_shallow_agents_go_first(line):
    await line.come("first")
    await line.come("deep", depth=2)
    await line.come("child", depth=1)
    await line.come("root")
    for name in ("first", "root", "child", "deep"):
        await line.leave(name)
    assert line.served == ["first", "root", "child", "deep"]


async def test_nobody_waits_for_ever(autojump_clock, line):
    await line.come("first")
    await line.come("deep", depth=1)
    await trio.sleep(AGEING / 2)
    await line.come("early", depth=0)
    await trio.sleep(AGEING)
    await line.come("late", depth=0)
    for name in ("first", "early", "deep", "late"):
        await line.leave(name)
    assert line.served == ["first", "early", "deep", "late"]


async def test_who_gives_up_takes_no_slot_with_them(line):
    for name in "abcd":
        await line.come(name)
    await line.give_up("b")
    await line.leave("a")
    await line.give_up("c")
    assert line.served == ["a", "c", "d"]


async def test_a_slot_given_to_one_who_gives_up_in_the_same_instant_goes_on(line):
    for name in "abc":
        await line.come(name)
    line._leave["a"].set()
    await trio.lowlevel.checkpoint()
    await line.give_up("b")
    assert line.served[-1] == "c"


async def test_places_are_counted_by_depth_and_kept_until_given_back(autojump_clock):
    places = Places(1)
    await places.take("a", 1)
    await places.take("a", 1)
    await places.take("below", 2)
    order = []

    async def take(name):
        await places.take(name, 1)
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name in "bc":
            nursery.start_soon(take, name)
            await trio.testing.wait_all_tasks_blocked()
        assert order == []
        places.give("a", 1)
        places.give("a", 1)
        await trio.testing.wait_all_tasks_blocked()
        assert order == ["b"]
        places.give("b", 1)
    assert order == ["b", "c"]
