"""Which model call led to which: edges between their ids, made of the events of a session. Pure.

An edge is there only when the call that it leads to has been answered, and so are both its ends.
"""

from __future__ import annotations

from typing import Any, Final

from rlm_harness.events import AgentSpawned, AnswerRead, AssistantReplied, Compacted, Event

KEY: Final = "ai.prime.acp/semantic-edges-v1"

EDGES_LIMIT: Final = 100_000
"""Each answer has all of them, and must fit into what a client reads as one message; later ones are left out."""


class Edges:
    """Of one session. Calls without an id have no edges."""

    def __init__(self) -> None:
        self._edges: list[dict[str, str]] = []
        self._leading: dict[str, list[tuple[str, str]]] = {}
        """By agent: the calls that lead to its next, and how."""
        self._last: dict[str, str] = {}
        self._parents: dict[str, str] = {}

    def take(self, event: Event) -> None:
        match event:
            case AssistantReplied(request_id=request_id, agent=agent) if request_id:
                self._arrive(agent, request_id)
                self._lead(agent, request_id, "continuation")
            case Compacted(request_id=request_id, agent=agent) if request_id:
                leading = self._leading.pop(agent, [])
                self._add(self._last.get(agent), request_id, "compaction_attempt")
                self._leading[agent] = [(source, kind) for source, kind in leading if kind != "continuation"]
                self._lead(agent, request_id, "compaction")
            case AgentSpawned(parent=parent, agent=agent):
                self._parents[agent] = parent
                if parent in self._last:
                    self._lead(agent, self._last[parent], "subagent_call")
            case AnswerRead(agent=agent):
                if agent in self._last and agent in self._parents:
                    self._lead(self._parents[agent], self._last[agent], "subagent_return")
            case _:
                pass

    def mark(self) -> tuple[str | None, list[tuple[str, str]]]:
        """Where the root agent stands, for `roll_back`."""
        return self._last.get(""), list(self._leading.get("", ()))

    def roll_back(self, mark: tuple[str | None, list[tuple[str, str]]]) -> None:
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
        return {"edges": list(self._edges)}

    def _lead(self, agent: str, source: str, kind: str) -> None:
        leading = self._leading.setdefault(agent, [])
        if (source, kind) not in leading:
            leading.append((source, kind))
        if kind in ("continuation", "compaction"):
            self._last[agent] = source

    def _arrive(self, agent: str, target: str) -> None:
        for source, kind in self._leading.pop(agent, ()):
            self._add(source, target, kind)

    def _add(self, source: str | None, target: str, kind: str) -> None:
        if source and source != target and len(self._edges) < EDGES_LIMIT:
            self._edges.append({"source_request_id": source, "target_request_id": target, "type": kind})
