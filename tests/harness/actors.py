"""A model for many agents at once: each finds its part by its task. Nothing here runs by itself."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import trio

from rlm_harness.agent import Agent
from rlm_harness.events import Emit, Usage
from rlm_harness.model.interface import Message, Reply, ToolCall, ToolChoice, ToolSchema
from rlm_harness.supervisor.supervisor import Supervisor

Opened = Callable[..., AbstractAsyncContextManager[tuple[Supervisor, Agent]]]
"""Opens a session for a model; further arguments are those of its policy."""

Cue = Reply | Callable[[Sequence[Message]], Awaitable[Reply]]
"""A reply, or what makes one of the conversation so far."""


def cell(code: str, usage: Usage = Usage(10, 2)) -> Reply:  # noqa: B008
    return tool("ipython", usage, code=code)


def tool(name: str, usage: Usage = Usage(10, 2), **arguments: Any) -> Reply:  # noqa: B008
    return Reply("", [ToolCall(f"call_{name}", name, json.dumps(arguments))], "tool_calls", usage)


def says(text: str, usage: Usage = Usage(10, 2)) -> Reply:  # noqa: B008
    return Reply(text, [], "stop", usage)


def records(directory: Path, name: str = "messages.jsonl") -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (directory / name).read_bytes().splitlines()]


async def silent(_: Sequence[Message]) -> Reply:
    """A model call that never ends."""
    await trio.sleep_forever()


class Actors:
    """Plays `parts`: for each task (the beginning of it), the replies in order."""

    name = "actors"

    def __init__(self, **parts: list[Cue]) -> None:
        self.parts = {task: list(cues) for task, cues in parts.items()}
        self.shown: dict[str, list[list[Message]]] = {task: [] for task in parts}
        self.running = 0
        self.most = 0
        self._more = trio.Event()

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        emit: Emit,
        tool_choice: ToolChoice = "auto",
    ) -> Reply:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await trio.lowlevel.checkpoint()
            task = str(messages[1]["content"]).partition(" ")[0]
            self.shown[task].append([dict(message) for message in messages])
            self._more.set()
            self._more = trio.Event()
            cue = self.parts[task].pop(0)
            return cue if isinstance(cue, Reply) else await cue(messages)
        finally:
            self.running -= 1

    async def calls(self, task: str, count: int) -> list[Message]:
        """Wait until `task` has made that many model calls; what it was shown in the last of them."""
        while len(self.shown[task]) < count:
            await self._more.wait()
        return self.shown[task][count - 1]

    def seen(self, task: str, call: int = -1) -> str:
        """The last message of that model call of `task`."""
        return str(self.shown[task][call][-1]["content"])
