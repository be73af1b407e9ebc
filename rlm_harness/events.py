"""What happens in a session, as one stream of typed events. Only the event types and what an event sink is.

The terminal display and `--json` read the same stream; as JSON each event is one object whose `event` names its type
(`ToolOutput` is `tool_output`). Sizes are in bytes, durations in seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from rlm_wire.broker.info import LostCall


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one model call, or summed over several, as the endpoint reports them.

    `cached_tokens` are those of `prompt_tokens` that it had in its cache.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


def snake_case(name: str) -> str:
    """What a type is called in JSON: `ToolOutput` is `tool_output`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class _Event(msgspec.Struct, frozen=True, tag_field="event", tag=snake_case, kw_only=True):
    """`agent` is the id of the child agent that it comes from, "" for the root agent and the session."""

    agent: str = ""


class SessionStarted(_Event, frozen=True):
    """`ledger` is the path of messages.jsonl; `workspace` the absolute directory the tools work in."""

    session: str
    model: str
    workspace: str
    worker: str
    ledger: str


class TurnStarted(_Event, frozen=True):
    """A turn is one model call and what it asks for; the first is number 1."""

    turn: int


class TextDelta(_Event, frozen=True):
    """The next piece of the reply's text, as it arrives."""

    text: str


class Retrying(_Event, frozen=True):
    """The model call failed and is tried again in `delay` seconds; text already shown of this reply is void."""

    reason: str
    delay: float
    attempt: int


class AssistantReplied(_Event, frozen=True):
    """The reply is complete and in the ledger, as the record of that id.

    `request_id` is the call's name at the endpoint, if it had one.
    """

    turn: int
    content: str
    finish_reason: str
    usage: Usage
    duration: float
    request_id: str = ""
    record: str = ""


class ToolStarted(_Event, frozen=True):
    turn: int
    call: str
    tool: str
    arguments: dict[str, Any]


class ToolOutput(_Event, frozen=True):
    """Live output of the running tool; pieces never end inside a character."""

    call: str
    text: str


class ToolFinished(_Event, frozen=True):
    """`content` is what the model sees, `note` the part of it that was not live output.

    `status` is `ok`, `error`, `timed_out` or `cancelled`: how the call ended. `exit_code` is that of a command that ran
    to its end (status `ok`); null for all else. `skill_calls` counts the skills that a cell called, by name, as the
    worker saw it.
    """

    call: str
    tool: str
    status: str
    note: str
    content: str
    duration: float
    exit_code: int | None = None
    skill_calls: dict[str, int] = {}


class Nudged(_Event, frozen=True):
    """The harness answered the model itself, with `text`, as the reply was no use."""

    kind: str
    text: str


class Compacting(_Event, frozen=True):
    """The conversation nears or exceeds the model's window: the model is asked for a summary to go on from.

    `reason` is `threshold`, `length` (the reply so far was cut off, and its text is void) or `overflow`.
    """

    reason: str


class SummaryReplied(_Event, frozen=True):
    """The model has answered, when asked for a summary; it is one if `Compacted` comes next, else it is of no use."""

    attempt: int
    request_id: str = ""


class Compacted(_Event, frozen=True):
    """From now on the model sees the summary in place of what was before; `window` is the number of its window.

    What was before had so many `turns` since the last one, and the model does not see `dropped_chars` of it any more.
    """

    window: int
    summary: str
    attempts: int
    usage: Usage
    duration: float
    request_id: str = ""
    turns: int = 0
    dropped_chars: int = 0


class AgentSpawned(_Event, frozen=True):
    """`agent` was started by its `parent` ("": the root agent); `ledger` is the path of its messages.jsonl."""

    parent: str
    name: str | None
    depth: int
    task: str
    ledger: str


class AgentChanged(_Event, frozen=True):
    """`agent` has another status: `running`, `idle`, `completed`, `failed` or `cancelled`.

    `stop` and `answer` are of its last prompt, `error` says why it failed. `cancelled_by` is the record of its parent's
    reply that has cancelled it, null if it ended for another reason.
    """

    status: str
    stop: str | None = None
    answer: str | None = None
    error: str | None = None
    cancelled_by: str | None = None


class AnswerRead(_Event, frozen=True):
    """The parent of `agent` has read its answer, or how it ended: in which status it was then (see `AgentChanged`).

    `source` is the record of its last reply by then, null if there was none.
    """

    status: str
    source: str | None = None


class MessageRead(_Event, frozen=True):
    """`agent` has read a message, or it stands in its conversation now.

    It is from its child or parent `sender` ("": the root agent); `source` is the record of the reply that has sent it.
    """

    sender: str
    source: str | None = None


class Cancelling(_Event, frozen=True):
    """The first Ctrl-C was taken: the turn is being cancelled, in order; a second one leaves at once."""


class Reconnecting(_Event, frozen=True):
    """There is no connection to the worker; what runs there goes on, and calls wait until there is one again."""

    reason: str


class Reconnected(_Event, frozen=True):
    """The connection is back, and nothing was lost."""


class SessionEnded(_Event, frozen=True):
    """`stop` is `answered`, `max_turns`, `max_tokens`, `length`, `empty`, `compaction_failed`, `cancelled`, `refused`,
    `workspace_lost` or `error`.

    `length`: the reply was cut at the model's token limit; `empty`: there was nothing in it; `compaction_failed`: the
    conversation had become too long, and there was no summary to go on from; `refused`: the endpoint will not have the
    request; `workspace_lost`: the worker is gone, which is no fault of the agent's, and `lost` are the calls that were
    open then; `error`: the session could not go on. `message` says what went wrong and what to do. `notices` are what
    the agent has left running.
    """

    stop: str
    answer: str
    turns: int
    usage: Usage
    duration: float
    ledger: str
    message: str = ""
    notices: list[str] = []
    lost: list[LostCall] = []


class Verdict(_Event, frozen=True):
    """The demo's end: what the harness itself found, not what the model said."""

    passed: bool
    findings: list[str]


Event: TypeAlias = (
    SessionStarted
    | TurnStarted
    | TextDelta
    | Retrying
    | AssistantReplied
    | ToolStarted
    | ToolOutput
    | ToolFinished
    | Nudged
    | Compacting
    | SummaryReplied
    | Compacted
    | AgentSpawned
    | AgentChanged
    | AnswerRead
    | MessageRead
    | Cancelling
    | Reconnecting
    | Reconnected
    | SessionEnded
    | Verdict
)

Emit: TypeAlias = Callable[[Event], Awaitable[None]]
"""Where events go. A slow sink slows down what it watches, down to the command whose output it shows."""
