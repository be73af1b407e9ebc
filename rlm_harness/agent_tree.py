"""The child agents of a session as a person sees them: from events, one line for each. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

from rlm_harness.events import (
    AgentChanged,
    AgentSpawned,
    AssistantReplied,
    Compacting,
    Event,
    Retrying,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)

SHOWN: Final = 72
"""Characters of a task, an answer or a cell."""

ENDED: Final = frozenset({"completed", "failed", "cancelled"})

_ARGUMENTS: Final = {"ipython": "code", "bash": "command", "edit": "path", "fetch": "url"}
"""Which argument of a tool tells what it is about."""


class SeenAgent:
    """What has been seen of one agent. Times are those that were given with the events."""

    def __init__(self, event: AgentSpawned, now: float) -> None:
        self.id = event.agent
        self.parent = event.parent
        self.depth = event.depth
        self.label = first_line(event.name or event.agent, 32)
        self.status = "starting"
        self.turns = 0
        self.tokens = 0
        self.doing = ""
        self.began = now
        self.ended: float | None = None

    def take(self, event: Event, now: float) -> None:
        match event:
            case TurnStarted(turn):
                self.turns, self.doing = turn, "thinks"
            case AssistantReplied():
                self.tokens += event.usage.prompt_tokens + event.usage.completion_tokens
                self.doing = ""
            case ToolStarted():
                about = str(event.arguments.get(_ARGUMENTS.get(event.tool, ""), ""))
                self.doing = f"▶ {event.tool} {first_line(about)}".rstrip()
            case ToolFinished():
                self.doing = ""
            case Retrying(reason):
                self.doing = f"tries the model again: {first_line(reason)}"
            case Compacting():
                self.doing = "sums up"
            case AgentChanged(status):
                self.status, self.doing = status, ""
                self.ended = now if status in ENDED else None
            case _:
                pass

    def cost(self, now: float) -> str:
        """Turns, tokens and time so far."""
        turns = f"{self.turns} turn{'s' * (self.turns != 1)}"
        tokens = f"{self.tokens:,} tokens · " if self.tokens else ""
        return f"{turns} · {tokens}{(self.ended or now) - self.began:.0f} s"

    def line(self, now: float) -> str:
        doing = f" · {self.doing}" if self.doing else ""
        return f"{'  ' * self.depth}{self.label} {self.status} · {self.cost(now)}{doing}"


class AgentTree:
    """All child agents that have been told of."""

    def __init__(self) -> None:
        self._agents: dict[str, SeenAgent] = {}
        self._children: dict[str, list[SeenAgent]] = {}

    def take(self, event: Event, now: float) -> SeenAgent | None:
        """Note `event`; the child agent it comes from, if it does."""
        if isinstance(event, AgentSpawned):
            agent = self._agents[event.agent] = SeenAgent(event, now)
            self._children.setdefault(event.parent, []).append(agent)
            return agent
        seen = self._agents.get(event.agent)
        if seen is not None:
            seen.take(event, now)
        return seen

    def lines(self, now: float, limit: int) -> list[str]:
        """A headline, and a line for each agent that has not ended, each behind its parent; `limit` lines at most."""
        alive = [agent for agent in self._in_order("") if agent.ended is None]
        if not alive:
            return []
        idle = sum(agent.status == "idle" for agent in alive)
        tokens = sum(agent.tokens for agent in self._agents.values())
        ended = len(self._agents) - len(alive)
        head = f"agents: {len(alive) - idle} at work, {idle} idle, {ended} ended · {tokens:,} tokens"
        room = limit - 1 if len(alive) < limit else limit - 2
        shown = [agent.line(now) for agent in alive[:room]]
        more = [f"  and {len(alive) - room} more"] if len(alive) > room else []
        return [head, *shown, *more]

    def _in_order(self, parent: str) -> Iterator[SeenAgent]:
        for agent in self._children.get(parent, ()):
            yield agent
            yield from self._in_order(agent.id)


def first_line(text: str, limit: int = SHOWN) -> str:
    """The first line of `text` that is not empty, cut at `limit` characters."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def fit(line: str, columns: int) -> str:
    """As much of `line` as stands in so many columns of a terminal."""
    used = 0
    for place, character in enumerate(line):
        used += 2 if unicodedata.east_asian_width(character) in "WF" else not unicodedata.combining(character)
        if used > columns:
            return line[:place]
    return line
