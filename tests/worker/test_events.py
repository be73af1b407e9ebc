"""Events are told in order from any number on, and what was too old to be kept is counted."""

from __future__ import annotations

import trio
import trio.testing

from rlm_wire.methods.events import Content, Event, EventsLost, PathChanged, ShellCollected
from rlm_worker.events import BYTES_LIMIT, EVENT_LIMIT, Events


async def told(events: Events, after: int = 0) -> list[Event]:
    """What a follower is told at once."""
    received: list[Event] = []

    async def send(event: Event) -> None:
        await trio.lowlevel.checkpoint()
        received.append(event)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.follow, send, after)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return received


def contents(events: list[Event]) -> list[tuple[int, Content]]:
    return [(event.number, event.content) for event in events]


async def test_a_follower_is_told_everything_after_a_number() -> None:
    events = Events()
    for number in range(1, 4):
        events.publish("agent", ShellCollected(f"job-{number}"))
    assert contents(await told(events)) == [(number, ShellCollected(f"job-{number}")) for number in (1, 2, 3)]
    assert contents(await told(events, after=2)) == [(3, ShellCollected("job-3"))]
    assert await told(events, after=3) == []


async def test_events_that_are_gone_are_counted_where_they_were() -> None:
    events = Events()
    for number in range(EVENT_LIMIT + 5):
        events.publish("agent", ShellCollected(f"job-{number}"))
    received = await told(events)
    assert (received[0].number, received[0].content) == (5, EventsLost(5))
    assert [event.number for event in received] == list(range(5, EVENT_LIMIT + 6))
    assert (await told(events, after=2))[0].content == EventsLost(3)


async def test_large_events_are_bounded_in_bytes() -> None:
    events = Events()
    large = PathChanged("watch-1", "/", ["x" * 32_000])
    for _ in range(1000):
        events.publish("agent", large)
    received = await told(events)
    assert isinstance(received[0].content, EventsLost)
    assert 0.9 * BYTES_LIMIT < (len(received) - 1) * 32_000 < BYTES_LIMIT


async def test_a_slow_follower_holds_nobody_up() -> None:
    events = Events()
    received: list[int] = []
    go = trio.Event()

    async def send(event: Event) -> None:
        await go.wait()
        received.append(event.number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.follow, send)
        for _ in range(3):
            events.publish("agent", ShellCollected("job"))
            await trio.testing.wait_all_tasks_blocked()
        go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert received == [1, 2, 3]
        nursery.cancel_scope.cancel()
