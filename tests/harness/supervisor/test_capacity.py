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


@pytest.fixture
async def places(autojump_clock):
    """A function that has agents come for a place, one after the other; those that got one are in `order`."""
    order, kept = [], Places(1)
    async with trio.open_nursery() as nursery:

        async def come(*agents):
            for agent in agents:
                nursery.start_soon(take, agent)
                await trio.testing.wait_all_tasks_blocked()

        async def take(agent):
            await kept.take(agent, 1, agent[0])
            order.append(agent)

        async def give(agent):
            kept.give(agent)
            await trio.testing.wait_all_tasks_blocked()

        come.give, come.order, come.kept, come.nursery = give, order, kept, nursery
        yield come
        nursery.cancel_scope.cancel()


async def test_a_place_is_kept_until_it_is_given_back_and_counted_by_depth(places):
    await places("a1", "a2", "a3")
    assert places.order == ["a1"]
    await places.kept.take("a1", 1, "a")
    await places.kept.take("below", 2, "a1")
    await places.give("nobody")
    await places.give("a1")
    await places.give("a1")
    assert places.order == ["a1", "a2"]
    await places.give("a2")
    assert places.order == ["a1", "a2", "a3"]


async def test_who_has_started_many_does_not_keep_its_neighbour_from_having_any(places):
    places.kept._limit = 2
    await places("a1", "a2", "a3", "a4", "b1", "b2")
    for agent in ("a1", "a2", "b1"):
        await places.give(agent)
    assert places.order == ["a1", "a2", "b1", "a3", "b2"]


async def test_who_gives_up_takes_no_place_along(places):
    await places("a1")
    with trio.CancelScope() as scope:
        places.nursery.start_soon(cancel_when_waiting, scope, lambda: None)
        await places.kept.take("b1", 1, "b")
    assert scope.cancelled_caught
    await places("a2")
    await places.give("a1")
    assert places.order == ["a1", "a2"]


async def test_a_place_given_to_one_who_gives_up_in_the_same_instant_goes_on(places):
    await places("a1")
    with trio.CancelScope() as scope:
        places.nursery.start_soon(cancel_when_waiting, scope, lambda: places.kept.give("a1"))
        await places.kept.take("b1", 1, "b")
    assert scope.cancelled_caught
    await places("a2")
    assert places.order == ["a1", "a2"]


async def cancel_when_waiting(scope, then):
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()
    then()
