"""The inbox by itself: order, counters, and what happens at its limit."""

import pytest

from rlm_harness.supervisor.inbox import Inbox, InboxFull
from rlm_wire.methods.inbox import InboxEvent


def event(name):
    return InboxEvent(id=name, type="agent.message", sender_id="s", created_at=0.0, content={})


def ids(inbox, *, unread_only=True):
    return [entry.id for entry in inbox.entries(unread_only=unread_only)]


def test_events_are_listed_in_order_and_reading_marks_them():
    inbox = Inbox()
    for name in "abc":
        inbox.add(event(name), loud=True, required=False)
    assert ids(inbox) == ["a", "b", "c"]
    assert not inbox.get("b").read
    assert inbox.read("b").read
    assert inbox.read("b").read
    assert (ids(inbox), inbox.unread) == (["a", "c"], 2)
    assert [(entry.id, entry.read) for entry in inbox.entries(unread_only=False)] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]
    assert inbox.get("z") is None


def test_loud_events_are_announced_once_and_quiet_ones_never():
    inbox = Inbox()
    inbox.add(event("quiet"), loud=False, required=True)
    assert not inbox.unannounced
    inbox.add(event("loud"), loud=True, required=False)
    assert (inbox.unannounced, inbox.unread) == (True, 1)
    inbox.announce()
    assert not inbox.unannounced
    inbox.read("loud")
    assert not inbox.unannounced
    inbox.add(event("more"), loud=True, required=False)
    assert inbox.unannounced
    inbox.read("more")
    assert not inbox.unannounced, "nothing is left to announce"


def test_an_announcement_that_was_rolled_back_is_made_again():
    inbox = Inbox()
    inbox.add(event("a"), loud=True, required=False)
    inbox.announce()
    inbox.forget_announcement()
    assert inbox.unannounced


def test_a_wait_ends_for_what_is_loud_and_new_or_quiet_and_new():
    inbox = Inbox()
    assert not inbox.ready
    inbox.add(event("quiet"), loud=False, required=True)
    assert inbox.ready
    inbox.end_wait()
    assert not inbox.ready, "one quiet event ends one wait"
    inbox.add(event("next"), loud=False, required=True)
    inbox.read("next")
    assert not inbox.ready
    inbox.read("quiet")
    assert not inbox.ready
    inbox.add(event("loud"), loud=True, required=False)
    assert inbox.ready
    inbox.announce()
    assert not inbox.ready


def test_at_the_limit_what_was_read_makes_room_and_what_must_come_comes():
    inbox = Inbox(limit=2)
    inbox.add(event("a"), loud=True, required=False)
    inbox.add(event("b"), loud=True, required=False)
    with pytest.raises(InboxFull):
        inbox.add(event("c"), loud=True, required=False)
    inbox.read("b")
    inbox.add(event("c"), loud=True, required=False)
    assert ids(inbox, unread_only=False) == ["a", "c"]
    inbox.add(event("d"), loud=True, required=True)
    assert ids(inbox) == ["a", "c", "d"]
    assert inbox.unread == 3


def test_an_agent_that_never_reads_loses_the_oldest_events_at_twice_the_limit():
    inbox = Inbox(limit=2)
    for name in "abcdef":
        inbox.add(event(name), loud=name == "a", required=True)
    assert ids(inbox, unread_only=False) == ["c", "d", "e", "f"]
    assert (inbox.unread, inbox.unannounced, inbox.ready) == (0, False, True)
    assert inbox.get("a") is None
