"""A model that plays a script, for the demo and for tests of harnesses: no network, no key."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from rlm_harness.events import Emit, TextDelta
from rlm_harness.model.interface import Message, Reply, ToolCall, ToolChoice, ToolSchema


class Line(msgspec.Struct, frozen=True):
    """One reply of the script: `text`, and the tool to call with `arguments` (None: the turn ends here).

    `expects` is a regular expression that the last message must match; otherwise the script has lost its way, says so,
    and ends the turn.
    """

    text: str
    tool: str | None = None
    arguments: dict[str, Any] = {}
    expects: str = ""


class ScriptedModel:
    """Replies with the lines of `script`, one each; behind the last it has nothing more to say."""

    def __init__(self, script: Sequence[Line], name: str = "scripted") -> None:
        self._lines = iter(script)
        self._number = 0
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        emit: Emit,
        tool_choice: ToolChoice = "auto",
    ) -> Reply:
        """See `Model.reply`; text goes out word by word. Cancellation: that line of the script is used up."""
        line = next(self._lines, Line("The script ends here."))
        seen = str(messages[-1]["content"])
        if not re.search(line.expects, seen):
            line = Line(f"I expected to see {line.expects!r} here and do not; I stop.")
        for word in re.findall(r"\s*\S+\s*$|\s*\S+", line.text):
            await emit(TextDelta(word))
        if line.tool is None:
            return Reply(line.text)
        self._number += 1
        call = ToolCall(f"call_{self._number}", line.tool, json.dumps(line.arguments))
        return Reply(line.text, [call], "tool_calls")
