"""Watches of agents: events about what a child does, for the parent that asked. Bounded for the whole tree."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any, Final

import trio

from rlm_harness.supervisor.mail import Mail
from rlm_harness.supervisor.tree import Node
from rlm_wire.errors import CallError
from rlm_wire.methods.sessions import Quotas
from rlm_wire.methods.watches import WatchInfo, WatchKind, WatchStatus

BATCH: Final = 0.2
"""Seconds within which what happens is one event."""


class AgentWatch:
    """One watch of `target`, which `owner` has set."""

    def __init__(
        self, watch_id: str, owner: Node, target: Node, every_turns: int | None, every_tokens: int | None
    ) -> None:
        self.id = watch_id
        self.owner = owner
        self.target = target
        self.status: WatchStatus = "active"
        self.scope = trio.CancelScope()
        self._kind: WatchKind = "agent" if every_turns is None and every_tokens is None else "progress"
        self._every_turns = every_turns
        self._every_tokens = every_tokens
        self._created_at = time.time()
        self._told = target.messages
        self._set_marks()

    def info(self) -> WatchInfo:
        return WatchInfo(self.id, self.owner.id, self._kind, self.target.id, self.status, self._created_at)

    @property
    def type(self) -> str:
        return f"watch.{self._kind}"

    @property
    def due(self) -> bool:
        """There is something to tell."""
        if self._kind == "agent":
            return self.target.messages > self._told
        return self.target.turns >= self._next_turns or _tokens(self.target) >= self._next_tokens

    def take(self) -> dict[str, Any]:
        """The content of the event that is due."""
        target, start = self.target, self._told
        self._told = target.messages
        self._set_marks()
        content = {"target": target.id, "start": start, "end": target.messages}
        if self._kind == "agent":
            return content
        return content | {
            "turns": target.turns,
            "tokens": _tokens(target),
            "name": target.name,
            "status": target.status,
        }

    def _set_marks(self) -> None:
        self._next_turns = _next_multiple(self.target.turns, self._every_turns)
        self._next_tokens = _next_multiple(_tokens(self.target), self._every_tokens)


class AgentWatches:
    """Those of a session."""

    def __init__(self, mail: Mail, nursery: trio.Nursery, quotas: Quotas) -> None:
        self._mail = mail
        self._nursery = nursery
        self._quotas = quotas
        self._watches: dict[str, AgentWatch] = {}
        self._registered = 0

    def add(self, owner: Node, target: Node, every_turns: int | None, every_tokens: int | None) -> WatchInfo:
        """Watch `target`, a child of `owner`; `completed` already if it has ended. Raises CallError."""
        if sum(watch.status == "active" for watch in self._watches.values()) >= self._quotas.watches:
            message = f"active watch limit reached ({self._quotas.watches}): cancel one first"
            raise CallError("resource_exhausted", message, retryable=True)
        if self._registered >= self._quotas.registered_watches:
            raise CallError("resource_exhausted", f"watch limit reached ({self._quotas.registered_watches} in all)")
        self._registered += 1
        watch = AgentWatch(f"agent-watch-{self._registered}", owner, target, every_turns, every_tokens)
        self._watches[watch.id] = watch
        if target.ended.is_set():
            watch.status = "completed"
        else:
            self._nursery.start_soon(self._follow, watch)
        return watch.info()

    def list(self, owner: Node) -> list[WatchInfo]:
        """All that `owner` has set, oldest first, also ended ones."""
        return [watch.info() for watch in self._watches.values() if watch.owner is owner]

    def get(self, owner: Node, watch_id: str) -> AgentWatch:
        """CallError if there is none of that id, or it is another agent's."""
        watch = self._watches.get(watch_id)
        if watch is None or watch.owner is not owner:
            raise CallError("not_found", "unknown subscription or not owned by this agent")
        return watch

    def cancel(self, watch: AgentWatch) -> None:
        """End a watch; what it has not told yet is dropped."""
        if watch.status == "active":
            watch.status = "cancelled"
            watch.scope.cancel("the watch was cancelled")

    def close(self, owner: Node) -> None:
        """End all of an agent that has ended."""
        for watch in self._watches.values():
            if watch.owner is owner:
                self.cancel(watch)

    async def _follow(self, watch: AgentWatch) -> None:
        with watch.scope:
            while not watch.target.ended.is_set():
                if watch.due:
                    with trio.move_on_after(BATCH):
                        await watch.target.ended.wait()
                    await self._tell(watch)
                else:
                    await watch.target.progress.wait()
            if watch.due:
                await self._tell(watch)
            watch.status = "completed"

    async def _tell(self, watch: AgentWatch) -> None:
        with suppress(CallError):  # its inbox is full: of what it watches, it has to read some first
            await self._mail.publish(
                watch.owner, watch.type, watch.target.id, watch.take(), required=False, subscription=watch.id
            )


def _next_multiple(number: int, step: int | None) -> float:
    return math.inf if step is None else (number // step + 1) * step


def _tokens(node: Node) -> int:
    return node.usage.prompt_tokens + node.usage.completion_tokens
