"""Which model call led to which: edges between their ids, made of the events of a session. Pure.

An edge is there only when the call that it leads to has been answered, and so are both its ends. What an agent reads
leads to its next call, and comes from the call whose reply has sent it; cancelling leads to the last call of the agent
that was cancelled, which makes no other.
"""

from __future__ import annotations

from typing import Any, Final

from rlm_harness.events import (
    AgentChanged,
    AgentSpawned,
    AnswerRead,
    AssistantReplied,
    Compacted,
    Event,
    MessageRead,
    SummaryReplied,
)

KEY: Final = "ai.prime.acp/semantic-edges-v1"

EDGES_LIMIT: Final = 100_000
"""Each answer has all of them, and must fit into what a client reads as one message; later ones are left out."""

_OUTCOMES: Final = {"idle": "subagent_return", "completed": "subagent_return", "failed": "subagent_failed"}
"""What reading how an agent stands is; one that was cancelled returns nothing."""


class Edges:
    """Of one session. Calls without an id have no edges."""

    def __init__(self) -> None:
        self._edges: dict[tuple[str, str, str], None] = {}
        self._calls: dict[str, str] = {}
        """By the record of its reply."""
        self._leading: dict[str, dict[tuple[str, str], None]] = {}
        """By agent: the calls that lead to its next, and how."""
        self._last: dict[str, str] = {}
        self._parents: dict[str, str] = {}

    def take(self, event: Event) -> None:
        match event:
            case AssistantReplied(request_id=request_id, agent=agent) if request_id:
                self._calls[event.record] = request_id
                self._arrive(agent, request_id)
                self._lead(agent, request_id, "continuation")
            case SummaryReplied(request_id=request_id, agent=agent):
                self._add(self._last.get(agent), request_id, "compaction_attempt")
            case Compacted(request_id=request_id, agent=agent) if request_id:
                leading = self._leading.pop(agent, {})
                self._leading[agent] = {(source, kind): None for source, kind in leading if kind != "continuation"}
                self._lead(agent, request_id, "compaction")
            case AgentSpawned(parent=parent, agent=agent):
                self._parents[agent] = parent
                self._lead(agent, self._last.get(parent), "subagent_call")
            case AnswerRead(status, source, agent=agent) if status in _OUTCOMES and agent in self._parents:
                self._lead(self._parents[agent], self._calls.get(source or ""), _OUTCOMES[status])
            case MessageRead(source=source, agent=agent):
                self._lead(agent, self._calls.get(source or ""), "agent_message")
            case AgentChanged(cancelled_by=source, agent=agent) if source is not None:
                self._add(self._calls.get(source), self._last.get(agent), "subagent_cancel")
            case _:
                pass

    def mark(self) -> tuple[str | None, dict[tuple[str, str], None]]:
        """Where the root agent stands, for `roll_back`."""
        return self._last.get(""), dict(self._leading.get("", {}))

    def roll_back(self, mark: tuple[str | None, dict[tuple[str, str], None]]) -> None:
        """The root agent's next call follows on what it followed on at `mark`."""
        last, leading = mark
        self._leading[""] = leading
        if last is None:
            self._last.pop("", None)
        else:
            self._last[""] = last

    @property
    def told(self) -> dict[str, Any]:
        """All edges so far, as clients get them."""
        names = ("source_request_id", "target_request_id", "type")
        return {"edges": [dict(zip(names, edge, strict=True)) for edge in self._edges]}

    def _lead(self, agent: str, source: str | None, kind: str) -> None:
        if source is None:
            return
        self._leading.setdefault(agent, {})[source, kind] = None
        if kind in ("continuation", "compaction"):
            self._last[agent] = source

    def _arrive(self, agent: str, target: str) -> None:
        for source, kind in self._leading.pop(agent, ()):
            self._add(source, target, kind)

    def _add(self, source: str | None, target: str | None, kind: str) -> None:
        if source and target and source != target and len(self._edges) < EDGES_LIMIT:
            self._edges[source, target, kind] = None
