"""The inbox of one agent: bounded, and every question that the loop asks at each step answered by a counter. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from rlm_wire.methods.inbox import InboxEntry, InboxEvent

INBOX_LIMIT: Final = 10_000
"""Events of one agent in memory."""


class InboxFull(Exception):
    """There is no room for an event that may be refused."""


class Inbox:
    """Events in order of arrival.

    *Loud* events are announced to the agent, *quiet* ones only end its waits. At the limit, events that were read make
    room, the first read first. If none was, what must be recorded still comes, up to twice the limit; then the oldest
    make room, which are in the journal only.
    """

    def __init__(self, limit: int = INBOX_LIMIT) -> None:
        self._limit = limit
        self._events: dict[str, InboxEvent] = {}
        self._arrival: dict[str, int] = {}  # of those unread
        self._loud: set[str] = set()  # of those unread
        self._read: deque[str] = deque()  # in order of their first reading
        self._arrived = 0
        self._newest_loud = 0
        self._announced = 0
        self._waited = 0
        self._quiet_since_wait = 0

    def add(self, event: InboxEvent, *, loud: bool, required: bool) -> None:
        """Put `event` in, as unread. Raises InboxFull unless it is `required`."""
        if len(self._events) >= self._limit:
            if not self._read:
                if not required:
                    raise InboxFull
                if len(self._events) >= 2 * self._limit:
                    self.read(next(iter(self._arrival)))
            if self._read:
                del self._events[self._read.popleft()]
        self._arrived += 1
        self._events[event.id] = event
        self._arrival[event.id] = self._arrived
        if loud:
            self._loud.add(event.id)
            self._newest_loud = self._arrived
        else:
            self._quiet_since_wait += 1

    def entries(self, *, unread_only: bool) -> Iterator[InboxEntry]:
        """The events, oldest first."""
        for event_id in list(self._arrival if unread_only else self._events):
            event = self._events[event_id]
            yield InboxEntry(event.id, event.type, event.sender_id, event.created_at, event.read)

    def get(self, event_id: str) -> InboxEvent | None:
        """The event of that id, if there is one."""
        return self._events.get(event_id)

    def read(self, event_id: str) -> InboxEvent:
        """The event, marked as read from now on. Raises KeyError."""
        event = self._events[event_id]
        if event.read:
            return event
        event = self._events[event_id] = msgspec.structs.replace(event, read=True)
        arrival = self._arrival.pop(event_id)
        if event_id in self._loud:
            self._loud.remove(event_id)
        elif arrival > self._waited:
            self._quiet_since_wait -= 1
        self._read.append(event_id)
        return event

    @property
    def unread(self) -> int:
        """Loud events that were not read."""
        return len(self._loud)

    @property
    def unannounced(self) -> bool:
        """Something loud has come since the agent was last told how many there are, and is unread."""
        return self._newest_loud > self._announced and bool(self._loud)

    def announce(self) -> None:
        """The agent has been told how many events there are."""
        self._announced = self._newest_loud

    def forget_announcement(self) -> None:
        """What the agent was told is out of its conversation again."""
        self._announced = 0

    @property
    def ready(self) -> bool:
        """A wait has nothing to wait for."""
        return self.unannounced or self._quiet_since_wait > 0

    def end_wait(self) -> None:
        """The agent has waited: what is quiet and here already ends no other wait."""
        self._waited = self._arrived
        self._quiet_since_wait = 0
