"""Events for the harness: the latest of a session, by number."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
import trio

from rlm_wire.methods.events import Content, Event, EventsLost

EVENT_LIMIT = 10_000
"""Events that are kept: what an inbox holds."""

BYTES_LIMIT = 16 * 1024 * 1024
"""Bytes of them, encoded: a harness that does not read must not cost memory."""


class Events:
    """The events of one session. Publishing never waits; the oldest make room."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Event, int]] = deque()
        self._bytes = 0
        self._last_number = 0
        self._more = trio.Event()

    @property
    def last_number(self) -> int:
        """Of the latest event, 0 if there was none."""
        return self._last_number

    def publish(self, agent: str, content: Content) -> None:
        """Add an event that concerns `agent`."""
        self._last_number += 1
        event = Event(self._last_number, agent, time.time(), content)
        size = len(msgspec.msgpack.encode(event))
        self._kept.append((event, size))
        self._bytes += size
        while len(self._kept) > EVENT_LIMIT or self._bytes > BYTES_LIMIT:
            self._bytes -= self._kept.popleft()[1]
        self._more.set()
        self._more = trio.Event()

    async def follow(self, send: Callable[[Event], Awaitable[None]], after: int = 0) -> None:
        """Hand every event with a number above `after` to `send`, for ever; in place of those gone, an `EventsLost`.

        Cancellation: nothing is lost to whoever follows from the last number on that it has.
        """
        while True:
            oldest = self._last_number + 1 - len(self._kept)
            if after + 1 < oldest:
                lost = EventsLost(oldest - 1 - after)
                after = oldest - 1
                await send(Event(after, "", time.time(), lost))
            elif after < self._last_number:
                event, _ = self._kept[after + 1 - oldest]
                after += 1
                await send(event)
            else:
                await self._more.wait()
