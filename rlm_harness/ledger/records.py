"""What may stand in a ledger: one Struct per type of record. Pure.

A record that carries a `message` has the next contiguous `message_index`. The *context* is what the model sees next:
the messages of the current window, which are those its `context_window` record lists and every later record that
names it. Closed windows never change.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from rlm_harness.events import Usage, snake_case
from rlm_harness.model.interface import Message
from rlm_wire.broker.info import LostCall

WindowReason: TypeAlias = Literal["start", "rollback", "compaction"]


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag=snake_case):
    """`id`, `timestamp` (Unix time, a label only), `message_index` and `window` are filled in by the writer.

    A ledger whose records lack a field without a default counts as damaged: fields that come later need one.
    """

    id: str = ""
    timestamp: float = 0.0
    message_index: int | None = None
    window: int | None = None


class System(_Record):
    message: Message


class User(_Record):
    """What the human asked, unwrapped; `id` names the prompt. `turn` counts the turns before it.

    In a child agent's ledger its task, or the messages that woke it, whose ids are `event_ids`.
    """

    turn: int
    message: Message
    event_ids: list[str] = []


class ParentMessage(_Record):
    """Messages of the parent's, wrapped, or what the human says meanwhile, unwrapped; `event_ids` are theirs."""

    message: Message
    provenance: dict[str, Any]
    event_ids: list[str]


class SupervisorNotification(_Record):
    """What the harness tells the model about its inbox."""

    message: Message
    provenance: dict[str, Any]


class EmptyReplyNudge(_Record):
    message: Message
    provenance: dict[str, Any]


class PlanReplyNudge(_Record):
    message: Message
    provenance: dict[str, Any]


class KernelRecovery(_Record):
    message: Message
    provenance: dict[str, Any]


class CellPictures(_Record):
    """What the cells of a turn have shown, as the model sees it."""

    message: Message
    provenance: dict[str, Any]


class Assistant(_Record):
    """The whole reply, and each tool call's arguments: parsed, or why they could not be."""

    turn: int
    message: Message
    finish_reason: str
    usage: Usage
    duration: float
    tool_calls: list[dict[str, Any]] = []


class ToolResult(_Record):
    """What a tool gave, in full. Outside the context if the model sees a shortened form of it.

    `skill_calls` counts the skills that a cell called, by name, as the worker saw it.
    """

    turn: int
    tool: str
    duration: float
    message: Message
    skill_calls: dict[str, int] = {}


class UnknownOutcome(_Record):
    """In place of a tool's result: the harness was killed while the call was under way, so nobody knows of it."""

    tool: str
    message: Message


class Resumed(_Record):
    """Another process goes on with the session, and tells the model what it knows.

    `workspace`: `adopted` (kernels, jobs and services are as they were) or `new`. `torn` bytes at the end of the ledger
    were an unfinished record, and have been cut off.
    """

    message: Message
    provenance: dict[str, Any]
    workspace: Literal["adopted", "new"]
    torn: int = 0


class DiscardedAssistant(_Record):
    """A reply that the end of the model's window cut off; a compaction follows, and the model is asked again.

    Never part of the context.
    """

    turn: int
    message: Message
    finish_reason: str
    usage: Usage
    duration: float


class ContextMessage(_Record):
    """What the model sees instead of the message at `source_message_index`, shortened; or (None) of a whole window."""

    message: Message
    source_message_index: int | None = None


class ContextWindow(_Record):
    """A new window begins: its number is `window`, and it starts with the messages listed."""

    reason: WindowReason
    message_indices: list[int]


class Compaction(_Record):
    """The model's own summary is to take the place of the window so far; the next record opens `window` with it.

    `summary_message_index` is the message that holds it, with what the harness says around it. `dropped_chars` counts
    the texts that the model does not see any more. `uncovered` messages at the end were too much even for the summary.
    `usage` and `duration` are those of all attempts, which are no turns.
    """

    reason: Literal["threshold", "length", "overflow"]
    turn: int
    summary: str
    summary_chars: int
    dropped_chars: int
    turns_since_last: int
    attempts: int
    usage: Usage
    duration: float
    uncovered: int = 0
    summary_message_index: int = -1


class PromptRollback(_Record):
    """The prompt did not come to its end; the next window holds the context from before it."""

    prompt_id: str
    start_turn: int
    attempted_turns: int
    reason: Literal["cancelled", "workspace_lost", "error"]


class WorkspaceLost(_Record):
    """The workspace was lost, and why; `calls` are those that were open, each with its method and its fate."""

    reason: str
    calls: list[LostCall]


class SubSpawn(_Record):
    """A child agent was started; `child_dir` is its directory below this ledger's."""

    child: str
    child_dir: str
    prompt: str
    name: str | None = None
    persistent: bool = False


class Done(_Record):
    """The prompt's end; `answer` is cut to 1,000 characters, as its whole stands in the last assistant record."""

    stop: str
    answer: str
    usage: Usage
    turns: int


MessageRecord: TypeAlias = (
    System
    | User
    | ParentMessage
    | SupervisorNotification
    | EmptyReplyNudge
    | PlanReplyNudge
    | KernelRecovery
    | CellPictures
    | Assistant
    | DiscardedAssistant
    | ToolResult
    | UnknownOutcome
    | Resumed
    | ContextMessage
)

Record: TypeAlias = MessageRecord | ContextWindow | Compaction | PromptRollback | WorkspaceLost | SubSpawn | Done
