"""What a client is shown of a session as it happens: events become updates of the protocol. Pure.

The root agent's replies are message chunks, its tool calls are tool calls, and the agents that it starts are its plan.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

from acp.helpers import (
    plan_entry,
    start_tool_call,
    text_block,
    tool_content,
    tool_diff_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
)
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    FileEditToolCallContent,
    PlanEntryStatus,
    SessionNotification,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    ToolKind,
)

from rlm_harness.agent_tree import ENDED, first_line
from rlm_harness.events import (
    AgentChanged,
    AgentSpawned,
    Compacting,
    Event,
    Reconnected,
    Reconnecting,
    Retrying,
    TextDelta,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    TurnStarted,
)

Update: TypeAlias = AgentMessageChunk | AgentThoughtChunk | ToolCallStart | ToolCallProgress | AgentPlanUpdate

SHOWN_OUTPUT: Final = 16 * 1024
"""Characters of live output that are shown: the end of it. Each update has all that is to be seen."""

PLAN_LIMIT: Final = 100
"""Agents in the plan, the latest: each update has all of them."""

_KINDS: Final[dict[str, ToolKind]] = {
    "ipython": "execute",
    "bash": "execute",
    "edit": "edit",
    "fetch": "fetch",
    "wait": "think",
}

_ABOUT: Final = {"ipython": "code", "bash": "command", "edit": "path", "fetch": "url"}
"""Which argument of a tool tells what it is about."""


class Updates:
    """Of one session. `workspace` is the directory that relative paths are meant from."""

    def __init__(self, workspace: str = "/") -> None:
        self.workspace = workspace
        self.said = ""
        """The text of the message that was shown last."""
        self._message = ""
        self._ids: dict[str, str] = {}
        """Of the running tool calls: endpoints may use an id again, and clients must not see it again."""
        self._output: dict[str, str] = {}
        self._diffs: dict[str, FileEditToolCallContent] = {}
        self._fresh: set[str] = set()
        self._plan: dict[str, tuple[str, PlanEntryStatus]] = {}

    def take(self, event: Event) -> Iterator[Update]:
        """What is to be shown of `event` at once; live output is for `output`."""
        match event:
            case AgentSpawned(name=name, task=task, agent=agent):
                self._plan[agent] = (first_line(f"{name}: {task}" if name else task), "pending")
                yield self._shown_plan()
            case AgentChanged(status=status, agent=agent) if agent in self._plan:
                settled = status in ENDED or status == "idle"
                self._plan[agent] = (self._plan[agent][0], "completed" if settled else "in_progress")
                yield self._shown_plan()
            case _ if event.agent:
                pass  # what agents below do is theirs
            case TurnStarted() | Compacting():
                self._begin_message()
            case Retrying(reason, delay):
                self._begin_message()
                yield _note(f"The model gave no reply: {reason}. Trying again in {delay:.0f} s.")
            case Reconnecting(reason):
                yield _note(f"The connection to the workspace is lost: {reason}. What runs there goes on.")
            case Reconnected():
                yield _note("The connection to the workspace is back.")
            case TextDelta(text):
                yield from self.message(text)
            case ToolStarted():
                yield self._started(event)
            case ToolOutput(call, text) if call in self._ids:
                self._output[call] = (self._output.get(call, "") + text)[-SHOWN_OUTPUT:]
                self._fresh.add(call)
            case ToolFinished() if event.call in self._ids:
                yield self._finished(event)
            case ToolFinished():
                yield self._refused(event)
            case _:
                pass

    def unfinished(self) -> Iterator[Update]:
        """The end of tool calls that have none, as what they ran in was lost."""
        for call in self._ids.values():
            yield update_tool_call(call, status="failed")
        self._ids.clear()
        self._output.clear()
        self._fresh.clear()
        self._diffs.clear()

    def message(self, text: str) -> Iterator[Update]:
        """More of what the agent says."""
        self._message = self._message or secrets.token_hex(8)
        self.said += text
        chunk = update_agent_message_text(text)
        chunk.message_id = self._message
        yield chunk

    def output(self) -> Iterator[Update]:
        """The live output of tools that has come since the last call of this."""
        for call in self._fresh:
            yield update_tool_call(self._ids[call], content=[tool_content(text_block(self._output[call]))])
        self._fresh.clear()

    def _begin_message(self) -> None:
        """What comes next is another message."""
        self._message, self.said = "", ""

    def _started(self, event: ToolStarted) -> Update:
        call = self._ids[event.call] = f"{event.turn}.{event.call}"
        about = str(event.arguments.get(_ABOUT.get(event.tool, ""), ""))
        content, locations = None, None
        if event.tool == "edit":
            path = str(PurePosixPath(self.workspace, about))
            before, after = str(event.arguments.get("old_str", "")), str(event.arguments.get("new_str", ""))
            diff = self._diffs[event.call] = tool_diff_content(path, after, before)
            content, locations = [diff], [ToolCallLocation(path=path)]
        return start_tool_call(
            call,
            f"{event.tool}: {first_line(about)}" if about.strip() else event.tool,
            kind=_KINDS.get(event.tool, "other"),
            status="in_progress",
            content=content,
            locations=locations,
            raw_input=event.arguments,
        )

    def _finished(self, event: ToolFinished) -> Update:
        self._output.pop(event.call, None)
        self._fresh.discard(event.call)
        diff = self._diffs.pop(event.call, None)
        good = event.status == "ok"
        return update_tool_call(
            self._ids.pop(event.call),
            status="completed" if good else "failed",
            content=[diff] if diff is not None and good else [tool_content(text_block(event.content))],
            raw_output={"status": event.status, "exit_code": event.exit_code, "duration": round(event.duration, 3)},
        )

    def _refused(self, event: ToolFinished) -> Update:
        """It never began: there was something wrong with the call."""
        return start_tool_call(
            f"refused.{secrets.token_hex(8)}",
            event.tool,
            kind=_KINDS.get(event.tool, "other"),
            status="failed",
            content=[tool_content(text_block(event.content))],
        )

    def _shown_plan(self) -> Update:
        latest = list(self._plan.values())[-PLAN_LIMIT:]
        return update_plan([plan_entry(content, status=status) for content, status in latest])


def _note(text: str) -> Update:
    """What is no part of the answer, but keeps who watches from wondering."""
    return update_agent_thought_text(f"{text}\n")


def notification(session: str, update: Update) -> dict[str, Any]:
    """The parameters of `session/update`."""
    told = SessionNotification(session_id=session, update=update)
    return told.model_dump(mode="json", by_alias=True, exclude_none=True)
