"""The inbox of an agent: what has happened that concerns it; `rlm.inbox` in cells. The harness answers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from rlm_wire.methods.base import Request


class InboxEntry(msgspec.Struct, frozen=True):
    """An event without its content. `type` is as `agent.message`; `created_at` is wall clock, a label only."""

    id: str
    type: str
    sender_id: str
    created_at: float
    read: bool


class InboxEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole event; what its `content` has depends on its type.

    `sender_id` is the agent that has caused it, `source_request_id` the reply of its model that led to it.
    """

    id: str
    type: str
    sender_id: str
    created_at: float
    content: dict[str, Any]
    source_request_id: str | None = None
    read: bool = False
    subscription_id: str | None = None


class ListInbox(Request[list[InboxEntry]], tag="inbox.list"):
    """The events, oldest first; `unread_only`: those that were not read. Marks none as read."""

    unread_only: bool = True


class ReadInbox(Request[InboxEvent], tag="inbox.read"):
    """An event, which is marked as read by that; it can be read again. Fails with `not_found`."""

    event_id: Annotated[str, msgspec.Meta(min_length=1)]
