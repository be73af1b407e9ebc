"""Agents and their children, as cells see them: `rlm.agent`. The harness answers; the caller is known by its scope.

An agent may have children, each a conversation of its own with the same tools in the same workspace. Handles reach
direct children only: the others are their parents' business. Where a field is an agent, it takes an id.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from rlm_wire.methods.base import Request
from rlm_wire.methods.ledger import LedgerChunk
from rlm_wire.methods.names import NAME_LIMIT
from rlm_wire.methods.watches import WatchInfo

MESSAGE_LIMIT: Final = 65_536
"""Bytes of one message between agents, as JSON."""

WAIT_LIMIT: Final = 300.0
"""Seconds that one wait takes at most; wait again for more."""

COLLECT_LIMIT: Final = 1024
"""Agents that one wait watches: as many as a workspace may have open."""

AgentStatus = Literal["starting", "running", "waiting", "idle", "completed", "failed", "cancelled"]
"""`starting`: not at work yet; `waiting`: in the tool `wait`; `idle`: has answered, and can be woken by a message."""

Text = Annotated[str, msgspec.Meta(min_length=1)]
Step = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=WAIT_LIMIT)]


class AgentHandle(msgspec.Struct, frozen=True):
    """`session_dir` is the directory of its ledger, on the harness's machine."""

    id: str
    session_dir: str


class AgentInfo(msgspec.Struct, frozen=True):
    """An agent as it is now. `created_at` is wall clock, a label only; `turns` counts its model calls.

    `task` is cut to 1,000 characters. `error` says why it failed, `cleanup_error` what of it could not be ended:
    cancelling it again tries again.
    """

    id: str
    parent_id: str | None
    name: str | None
    task: str
    status: AgentStatus
    persistent: bool
    created_at: float
    elapsed_seconds: float
    session_dir: str
    turns: int
    tokens: int
    depth: int
    error: str | None = None
    cleanup_error: str | None = None


class TokenUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class AgentResult(msgspec.Struct, frozen=True):
    """What came of an agent: `answer` is its latest, None before the first.

    `stop` says how its latest prompt ended: `answered`, or why there is no better answer (`length`, `empty`,
    `max_turns`, `max_tokens`, `token_budget`, `compaction_failed`). `running`: it is still at work.
    """

    id: str
    name: str | None
    status: AgentStatus
    answer: str | None
    usage: TokenUsage
    turns: int
    session_dir: str
    running: bool
    stop: str | None = None
    error: str | None = None


class SpawnAgent(Request[AgentHandle], tag="agents.spawn"):
    """Start a child that works on `task`; answers as soon as it is registered.

    `name` must be new among the children that the caller ever had. A `persistent` child stays when it has answered, and
    a message wakes it. Fails with `invalid_argument` (the name), `failed_precondition` (depth), `resource_exhausted`
    (calls, turns or tokens of the whole tree).
    """

    task: Text
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LIMIT)] | None = None
    persistent: bool = False


class GetAgent(Request[AgentHandle], tag="agents.get"):
    """A direct child by id or else by name; also one that has ended. Fails with `not_found`, as do all below."""

    agent: Text


class ListAgents(Request[list[AgentInfo]], tag="agents.list"):
    """The children, oldest first, also ended ones; `recursive`: and theirs, each behind its parent."""

    recursive: bool = False


class GetAgentInfo(Request[AgentInfo], tag="agents.info"):
    agent: Text


class WaitForAgent(Request[AgentInfo], tag="agents.wait"):
    """The child once it has answered or ended, or as it is after `timeout` seconds. Never touches it."""

    agent: Text
    timeout: Seconds = 30.0


class GetAgentResult(Request[AgentResult], tag="agents.result"):
    """The child's result once it has answered or ended, or as it is after `yield_after` seconds.

    Fails with `failed_precondition` and the child's own error if it has failed, `cancelled` if it was cancelled.
    """

    agent: Text
    yield_after: Seconds = WAIT_LIMIT


class CollectAgents(Request[AgentResult | None], tag="agents.collect"):
    """The result of that child which was the first of these to answer or end; None if none has after `timeout` seconds.

    The result of a child that has failed has its `status` and `error`.
    """

    agents: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=COLLECT_LIMIT)]
    timeout: Seconds = WAIT_LIMIT


class CancelAgent(Request[AgentInfo], tag="agents.cancel"):
    """End the child and all below it; answers when they have stopped, in the workspace too.

    Harmless if it has ended; what could not be cleaned up then is tried again.
    """

    agent: Text


class SendToAgent(Request[str], tag="agents.send"):
    """Give the child a message for when it answers or waits; returns the message's id, at once.

    Fails with `failed_precondition` (it has ended), `invalid_argument` (too long), `resource_exhausted` (its queue is
    full, or the tree's budget is used up).
    """

    agent: Text
    message: Text


class SteerAgent(Request[str], tag="agents.steer"):
    """As `agents.send`, but for the child's next step: before its next model call."""

    agent: Text
    message: Text


class SendToParent(Request[str], tag="agents.send_to_parent"):
    """Put a message into the parent's inbox; returns the event's id.

    Fails with `failed_precondition` (no parent, or it has ended), `invalid_argument`, `resource_exhausted`.
    """

    message: Text


class ReadAgentHistory(Request[LedgerChunk], tag="agents.history"):
    """The child's ledger from byte `start` on, at most 1 MiB of it; empty at its end."""

    agent: Text
    start: Annotated[int, msgspec.Meta(ge=0)] = 0


class WatchAgent(Request[WatchInfo], tag="agents.watch"):
    """Events about what the child does: each step, or each time that so many more turns or tokens are full.

    What happens within 200 ms is one event. One that has ended gives a watch that is `completed` already. At most 64
    watches of agents are active in a session, and 1,024 are set in its lifetime: `resource_exhausted`.
    """

    agent: Text
    every_turns: Step | None = None
    every_tokens: Step | None = None


class GetAgentWatch(Request[WatchInfo], tag="agents.get_watch"):
    """A watch of an agent as it is now. Fails with `not_found`."""

    watch: Text


class ListAgentWatches(Request[list[WatchInfo]], tag="agents.list_watches"):
    """All watches of agents that the caller has set, oldest first, also ended ones."""


class CancelAgentWatch(Request[WatchInfo], tag="agents.cancel_watch"):
    """End a watch of an agent; what it has not told yet is dropped. Fails with `not_found`."""

    watch: Text
