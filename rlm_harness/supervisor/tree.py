"""The tree of agents: who is whose child, what each is called, and how it stands with it. Pure but for `Signal`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from rlm_harness.events import Usage
from rlm_harness.supervisor.inbox import Inbox
from rlm_harness.supervisor.instructions import Instructions
from rlm_wire.methods.agents import AgentInfo, AgentResult, AgentStatus, TokenUsage

ROOT: Final = "root"
"""The id of the agent that has no parent."""

SHOWN_TASK: Final = 1000
"""Characters of a task in an AgentInfo: a list of all must fit into one message."""

ENDED: Final = frozenset({"completed", "failed", "cancelled"})


class Signal:
    """Wakes all that wait for a change; they look themselves what has changed."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        """Until the next `notify`. Cancellation: harmless."""
        await self._event.wait()


class Node:
    """One agent of the tree. `directory` is that of its ledger, below its parent's."""

    def __init__(self, agent_id: str, parent: Node | None, task: str, directory: Path, settled: Signal) -> None:
        self.id = agent_id
        self.parent = parent
        self.directory = directory
        self.task = task
        self.name: str | None = None
        self.persistent = False
        self.begun = False
        """It has a ledger of an earlier process of the harness, which it goes on with."""
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.children: dict[str, Node] = {}
        self.names: dict[str, Node] = {}
        """The children that were given a name, by it."""
        self.inbox = Inbox()
        self.instructions = Instructions()
        self.created_at = time.time()
        self.status: AgentStatus = "starting"
        self.open = True
        """It takes messages and starts children."""
        self.awaited: dict[str, trio.Event] = {}
        """Messages for it, by id, of which somebody waits to know that they stand in its conversation."""
        self.news = Signal()
        """Something in its inbox or among its instructions, or another status."""
        self.progress = Signal()
        """It has done a step, or ended."""
        self.messages = 0
        """In its ledger, when its last step was done."""
        self.settled_at: float | None = None
        """When it last answered or ended (Trio's clock); None while it is at work."""
        self.ended = trio.Event()
        """It has stopped, in the workspace too."""
        self.work = trio.CancelScope()
        self.answer: str | None = None
        self.stop: str | None = None
        self.told: str | None = None
        """The event in its parent's inbox that tells of its last answer or its end."""
        self.error: str | None = None
        self.cleanup_error: str | None = None
        self.usage = Usage()
        self.turns = 0
        self.request_id: str | None = None
        """The record of its model's last reply."""
        self.cancelled_by: str | None = None
        """The record of its parent's reply that has cancelled it."""
        self._settled = settled
        self._begun = trio.current_time()
        self._elapsed: float | None = None

    @property
    def in_events(self) -> str:
        """What events call it."""
        return "" if self.id == ROOT else self.id

    def change(self, status: AgentStatus) -> None:
        """Take another status, and tell all that wait."""
        self.status = status
        if status in ENDED:
            self._elapsed = trio.current_time() - self._begun
        if status != "idle" and status not in ENDED:
            self.settled_at = None
        elif self.settled_at is None:
            self.settled_at = trio.current_time()
            self._settled.notify()
        self.news.notify()

    def fail_to_start(self, error: str) -> None:
        """It has ended without ever having been at work."""
        self.open, self.error = False, error
        self.change("failed")
        self.ended.set()

    def descendants(self) -> Iterator[Node]:
        """All below it, each behind its parent, oldest first."""
        for child in self.children.values():
            yield child
            yield from child.descendants()

    def info(self) -> AgentInfo:
        elapsed = self._elapsed if self._elapsed is not None else trio.current_time() - self._begun
        return AgentInfo(
            id=self.id,
            parent_id=self.parent.id if self.parent is not None else None,
            name=self.name,
            task=self.task if len(self.task) <= SHOWN_TASK else f"{self.task[:SHOWN_TASK]}…",
            status=self.status,
            persistent=self.persistent,
            created_at=self.created_at,
            elapsed_seconds=round(elapsed, 3),
            session_dir=str(self.directory),
            turns=self.turns,
            tokens=self.usage.prompt_tokens + self.usage.completion_tokens,
            depth=self.depth,
            error=self.error,
            cleanup_error=self.cleanup_error,
        )

    def result(self) -> AgentResult:
        return AgentResult(
            id=self.id,
            name=self.name,
            status=self.status,
            answer=self.answer,
            usage=TokenUsage(self.usage.prompt_tokens, self.usage.completion_tokens),
            turns=self.turns,
            session_dir=str(self.directory),
            running=self.settled_at is None,
            stop=self.stop,
            error=self.error,
        )


class Tree:
    """All agents of a session, also those that have ended."""

    def __init__(self, directory: Path, task: str) -> None:
        self.settled = Signal()
        """Some agent has answered or ended."""
        self.root = Node(ROOT, None, task, directory, self.settled)
        self._nodes = {ROOT: self.root}

    def find(self, agent_id: str) -> Node | None:
        """The agent of that id, also if it has ended."""
        return self._nodes.get(agent_id)

    def add(self, parent: Node, task: str, name: str | None, *, persistent: bool, agent_id: str | None = None) -> Node:
        """A new child of `parent`, in status `starting`. `agent_id` None makes one up."""
        while agent_id is None or agent_id in self._nodes:
            agent_id = f"sub-{secrets.token_hex(4)}"
        node = Node(agent_id, parent, task, parent.directory / agent_id, self.settled)
        node.name, node.persistent = name, persistent
        self._nodes[agent_id] = parent.children[agent_id] = node
        if name is not None:
            parent.names[name] = node
        return node

    def persistent(self) -> int:
        """How many persistent agents there are that have not ended."""
        return sum(node.persistent and node.status not in ENDED for node in self._nodes.values())
