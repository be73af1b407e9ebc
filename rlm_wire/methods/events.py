"""Events: what the worker tells the harness of jobs, services and watches, in order and each once.

The harness keeps the records and decides what an agent gets to see of them.
"""

from __future__ import annotations

from typing import Never

import msgspec

from rlm_wire.methods.base import StreamRequest
from rlm_wire.methods.jobs import JobStatus
from rlm_wire.methods.services import ServiceStatus


class ShellStarted(msgspec.Struct, frozen=True, tag="shell.started"):
    """A job was started; for the records."""

    job: str
    command: str
    cwd: str


class ShellCompleted(msgspec.Struct, frozen=True, tag="shell.completed"):
    """A job has ended; `text` is the last 4 KiB of its output.

    `collected`: the agent was waiting for it and has the result already; else it has not been told yet.
    """

    job: str
    status: JobStatus
    exit_code: int | None
    output_complete: bool
    output_truncated: bool
    text: str
    error: str | None = None
    collected: bool = False


class ShellCollected(msgspec.Struct, frozen=True, tag="shell.collected"):
    """The agent has fetched the result of an ended job: it need not be told of it any more."""

    job: str


class ServiceChanged(msgspec.Struct, frozen=True, tag="service.changed"):
    """A service has another status."""

    name: str
    status: ServiceStatus
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    error: str | None = None


class JobOutputGrew(msgspec.Struct, frozen=True, tag="watch.job"):
    """The job `target` has new output: bytes `start` to `end` (exclusive)."""

    subscription_id: str
    target: str
    start: int
    end: int


class PathChanged(msgspec.Struct, frozen=True, tag="watch.path"):
    """Something happened to these absolute paths (sorted, at most 32 KiB as JSON; `truncated`: and to others)."""

    subscription_id: str
    target: str
    paths: list[str]
    truncated: bool = False


class WatchFailed(msgspec.Struct, frozen=True, tag="watch.failed"):
    """A watch has ended before its time: its target is gone."""

    subscription_id: str
    target: str
    error: str


class EventsLost(msgspec.Struct, frozen=True, tag="events.lost"):
    """`count` events before this one are gone: the worker keeps the latest 10,000, of 16 MiB at most."""

    count: int


Content = (
    ShellStarted
    | ShellCompleted
    | ShellCollected
    | ServiceChanged
    | JobOutputGrew
    | PathChanged
    | WatchFailed
    | EventsLost
)


class Event(msgspec.Struct, frozen=True):
    """`number` counts the session's events from 1; `agent` is whom it concerns ("" for `events.lost`).

    `created_at` is wall clock, a label only.
    """

    number: int
    agent: str
    created_at: float
    content: Content


class FollowEvents(StreamRequest[None, Event, Never], tag="workspace.events"):
    """The session's events with numbers above `after` as items, and those to come, until the call is cancelled.

    What happens while nobody follows is kept: follow from the number of the last event on that was taken.
    """

    after: int = 0
