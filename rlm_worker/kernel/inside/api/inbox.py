"""`rlm.inbox`: what has happened that concerns this agent, as cells see it."""

from __future__ import annotations

from rlm_wire.methods.inbox import InboxEntry, InboxEvent, ListInbox, ReadInbox
from rlm_worker.kernel.inside.api.calls import Calls, operation


class Inbox:
    """Events of child agents, jobs and watches, and messages."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @operation
    async def list(self, *, unread_only: bool = True) -> list[InboxEntry]:
        """The events, oldest first: `id`, `type`, `sender_id`, `created_at`, `read`. Marks none as read."""
        return await self._calls.request(ListInbox(unread_only))

    @operation
    async def read(self, event_id: str) -> InboxEvent:
        """A whole event, with its `content`; marks it as read. It can be read again."""
        return await self._calls.request(ReadInbox(event_id))
