"""Events for the harness: kept in order until they are sent, bounded, each sent once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable

import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.events import Content, Event, EventsLost

EVENT_LIMIT = 10_000
"""Events that wait for the harness: what an inbox holds. A harness that is gone for good must not cost memory."""


class Events:
    """The events of one session. Publishing never waits."""

    def __init__(self) -> None:
        self._waiting: deque[Event] = deque()
        self._published = 0
        self._more = trio.Event()
        self._followed = False

    def publish(self, agent: str, content: Content) -> None:
        """Add an event; if too many wait it is dropped, and one `EventsLost` in its place counts it and the next."""
        if len(self._waiting) >= EVENT_LIMIT:
            agent, content = "", self._one_more_lost()
        self._published += 1
        self._waiting.append(Event(self._published, agent, time.time(), content))
        self._more.set()

    def _one_more_lost(self) -> EventsLost:
        last = self._waiting[-1].content
        if not isinstance(last, EventsLost):
            return EventsLost(1)
        self._waiting.pop()
        return EventsLost(last.count + 1)

    async def follow(self, send: Callable[[Event], Awaitable[None]]) -> None:
        """Hand every event to `send`, for ever. Raises CallError("failed_precondition") if somebody does already.

        Cancellation: the event that `send` was given last may come again to whoever follows next.
        """
        if self._followed:
            raise CallError("failed_precondition", "the events of this session are followed by another call")
        self._followed = True
        try:
            while True:
                while self._waiting:
                    event = self._waiting[0]
                    await send(event)
                    if self._waiting[0] is event:  # not counted on while it was being sent
                        self._waiting.popleft()
                self._more = trio.Event()
                await self._more.wait()
        finally:
            self._followed = False
