"""Watches: events about what changes in the workspace, for the agent that asked; `rlm.watch` in cells.

Only what happens after a watch was set is told, gathered for 200 ms, as events (see `rlm_wire.methods.events`). At most
64 watches are active in a session, and 1,024 are set in its lifetime, unless the harness grants otherwise.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rlm_wire.methods.base import Request

WatchKind = Literal["path", "job", "agent", "progress"]
WatchStatus = Literal["active", "completed", "cancelled", "failed"]


class WatchInfo(msgspec.Struct, frozen=True):
    """A watch: `target` is an absolute path, or the id of a job or of an agent.

    `completed`: the job or agent has ended; `error`: why the watch has failed.
    """

    id: str
    owner_id: str
    kind: WatchKind
    target: str
    status: WatchStatus
    created_at: float
    recursive: bool = False
    error: str | None = None


class WatchPath(Request[WatchInfo], tag="watches.path"):
    """Watch an existing file, or a directory and what is directly in it (`recursive`: anywhere below it).

    `path`: 1 to 4,096 characters, relative to the agent's directory; symbolic links in it are followed, those below it
    are not. Answers once the system is watching. A file that is replaced by another is still the file. When the path is
    removed the watch ends with `watch.failed`.

    Fails with `not_found`, `permission_denied`, `invalid_argument`, `resource_exhausted` (too many watches, or more
    than 8,192 directories below it).
    """

    agent: str
    path: str
    recursive: bool = False


class WatchJob(Request[WatchInfo], tag="watches.job"):
    """Watch the output of a job. An ended job gives a watch that is `completed` already.

    Fails with `not_found`, `resource_exhausted`.
    """

    agent: str
    job: str


class GetWatch(Request[WatchInfo], tag="watches.get"):
    """Fails with `not_found`."""

    agent: str
    watch: str


class ListWatches(Request[list[WatchInfo]], tag="watches.list"):
    """All watches the agent has set, oldest first, also ended ones."""

    agent: str


class CancelWatch(Request[WatchInfo], tag="watches.cancel"):
    """End a watch; what it has gathered and not told yet is dropped. One that has ended stays as it is.

    Fails with `not_found`.
    """

    agent: str
    watch: str
