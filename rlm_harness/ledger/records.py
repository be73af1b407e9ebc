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


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag=snake_case):
    """`id`, `timestamp` (Unix time, a label only), `message_index` and `window` are filled in by the writer."""

    id: str = ""
    timestamp: float = 0.0
    message_index: int | None = None
    window: int | None = None


class System(_Record):
    message: Message


class User(_Record):
    """What the human asked, unwrapped; `id` names the prompt. `turn` counts the turns before it."""

    turn: int
    message: Message


class EmptyReplyNudge(_Record):
    message: Message
    provenance: dict[str, Any]


class PlanReplyNudge(_Record):
    message: Message
    provenance: dict[str, Any]


class KernelRecovery(_Record):
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
    """What a tool gave, in full. Outside the context if the model sees a shortened form of it."""

    turn: int
    tool: str
    duration: float
    message: Message


class ContextMessage(_Record):
    """The shortened form of the message at `source_message_index`."""

    message: Message
    source_message_index: int


class ContextWindow(_Record):
    """A new window begins: its number is `window`, and it starts with the messages listed."""

    reason: Literal["start", "rollback"]
    message_indices: list[int]


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


class Done(_Record):
    """The prompt's end; `answer` is cut to 1,000 characters, as its whole stands in the last assistant record."""

    stop: str
    answer: str
    usage: Usage
    turns: int


MessageRecord: TypeAlias = (
    System | User | EmptyReplyNudge | PlanReplyNudge | KernelRecovery | Assistant | ToolResult | ContextMessage
)

Record: TypeAlias = MessageRecord | ContextWindow | PromptRollback | WorkspaceLost | Done
