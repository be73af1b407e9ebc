"""What a ledger says of the agent whose harness was killed: where its conversation stood, and what is open. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from rlm_harness.events import Usage
from rlm_harness.ledger.history import History
from rlm_harness.model.interface import Message

SPENDING: Final = ("assistant", "discarded_assistant", "compaction")
"""The records that say what model calls took."""


class OpenPrompt(msgspec.Struct, frozen=True):
    """A prompt that did not come to an end. `indices` are the messages of the window from before it.

    `answer` is not None if the model has answered, and only the record of the end is missing.
    """

    id: str
    start_turn: int
    indices: list[int]
    answer: str | None = None


class OpenCall(msgspec.Struct, frozen=True):
    """A tool call of the last reply without a result in the window. `result` is that which stands aside, if any."""

    id: str
    tool: str
    result: int | None


class Recovered(msgspec.Struct, frozen=True):
    """Where a conversation stood. `indices` are the messages that the model saw; `turns` and `usage` of all prompts.

    `undone` is the window that a prompt which was rolled back should have opened, but has not.
    """

    indices: list[int]
    turns: int
    usage: Usage
    prompt: OpenPrompt | None
    calls: list[OpenCall]
    undone: list[int] | None


def recover(history: History) -> Recovered:
    """What is known of the agent whose ledger this is."""
    prompt: OpenPrompt | None = None
    before: list[int] = []
    undone: list[int] | None = None
    window: list[int] = []
    turns = 0
    for event in history.events:
        match event["type"]:
            case "user":
                prompt = OpenPrompt(event.get("id", ""), event["turn"], list(window))
                before = list(window)
            case "done":
                prompt = None
            case "prompt_rollback":
                turns = max(turns, event["start_turn"] + event["attempted_turns"])
                prompt, undone = None, before
            case "context_window":
                undone = None
                window = list(event["message_indices"])
            case "assistant" | "discarded_assistant":
                turns = max(turns, event["turn"])
            case _:
                pass
        if event.get("message_index") is not None and event.get("window") is not None:
            window.append(event["message_index"])
    calls = _open_calls(history, window)
    if prompt is not None and window and not calls:
        prompt = msgspec.structs.replace(prompt, answer=_answer(history.messages[window[-1]]))
    return Recovered(window, turns, spent(history.events), prompt, calls, undone)


def spent(events: Iterable[dict[str, Any]]) -> Usage:
    """Tokens of all model calls among `events`."""
    usages = (event.get("usage", {}) for event in events if event["type"] in SPENDING)
    return sum((msgspec.convert(usage, Usage) for usage in usages), Usage())


def _answer(message: Message) -> str | None:
    """The text of a reply that ended its prompt."""
    if message["role"] != "assistant" or message.get("tool_calls"):
        return None
    return message["content"] or None


def _open_calls(history: History, window: list[int]) -> list[OpenCall]:
    """The calls of the window's last reply that have no result in it: results follow their reply at once."""
    answered: set[str] = set()
    for index in reversed(window):
        message = history.messages[index]
        if message["role"] == "tool":
            answered.add(message["tool_call_id"])
            continue
        aside = {
            later["tool_call_id"]: place
            for place, later in enumerate(history.messages[index + 1 :], index + 1)
            if later["role"] == "tool"
        }
        return [
            OpenCall(call["id"], call["function"]["name"], aside.get(call["id"]))
            for call in message.get("tool_calls", ())
            if call["id"] not in answered
        ]
    return []
