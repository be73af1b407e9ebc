"""What agents tell each other, and what they are told: into inboxes and queues, and into the journals."""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

import msgspec

from rlm_harness.supervisor.inbox import InboxFull
from rlm_harness.supervisor.instructions import Instruction, Kind
from rlm_harness.supervisor.journal import Journal
from rlm_harness.supervisor.tree import Node
from rlm_wire.errors import CallError
from rlm_wire.methods.agents import MESSAGE_LIMIT, AgentStatus
from rlm_wire.methods.inbox import InboxEvent

HUMAN: Final = "human"
"""Who tells the root agent something while it is at work."""

SHOWN_ANSWER: Final = 4096
"""Bytes of an answer's end in the event that tells of it; the whole is the agent's result."""


class Mail:
    """One session's. Each method returns when what it did is in the journal. Cancellation: none, it is done whole."""

    def __init__(self) -> None:
        self._journals: dict[str, Journal] = {}

    def journal(self, node: Node) -> Journal:
        return self._journals.setdefault(node.id, Journal(node.directory))

    async def publish(
        self,
        to: Node,
        kind: str,
        sender: str,
        content: dict[str, Any],
        *,
        required: bool,
        loud: bool = True,
        source: str | None = None,
        subscription: str | None = None,
    ) -> str:
        """Put an event into the inbox of `to`; its id. CallError if it is full, and the event is not `required`."""
        event = InboxEvent(
            id=secrets.token_hex(8),
            type=kind,
            sender_id=sender,
            created_at=time.time(),
            content=content,
            source_request_id=source,
            subscription_id=subscription,
        )
        try:
            to.inbox.add(event, loud=loud, required=required)
        except InboxFull:
            raise CallError("resource_exhausted", "inbox event limit reached", retryable=True) from None
        to.news.notify()
        await self.journal(to).append(event)
        return event.id

    async def mark_read(self, node: Node, event_id: str) -> InboxEvent:
        """The event, read from now on. CallError if there is none of that id."""
        entry = node.inbox.get(event_id)
        if entry is None:
            raise CallError("not_found", f"unknown inbox event {event_id[:100]!r}")
        event = node.inbox.read(event_id)
        if not entry.read:
            await self.journal(node).append({"type": "read", "event_id": event_id})
        return event

    async def instruct(self, node: Node, kind: Kind, text: str) -> str:
        """Queue a message of the parent's for `node`; its id. CallError if it is too long, or the queue is full.

        An idle agent is at work again with that, also for those who ask before it has begun.
        """
        instruction = self.queue(node, kind, text)
        await self.note(node, instruction)
        return instruction.id

    def queue(self, node: Node, kind: Kind, text: str) -> Instruction:
        """As `instruct`, at once; also for what the human says to the root agent. To be followed by `note`."""
        check_message(text)
        if node.instructions.full:
            raise CallError("resource_exhausted", "instruction queue limit reached", retryable=True)
        source = node.parent.request_id if node.parent is not None else None
        instruction = Instruction(secrets.token_hex(8), kind, text, time.time(), source)
        node.instructions.add(instruction)
        if node.status == "idle":
            node.change("starting")
        node.news.notify()
        return instruction

    async def note(self, node: Node, instruction: Instruction) -> None:
        """Write into the journal that `instruction` was queued for `node`."""
        parent = node.parent
        await self.journal(node).append(
            {
                "type": instruction.kind,
                "id": instruction.id,
                "sender_id": parent.id if parent is not None else HUMAN,
                "created_at": instruction.created_at,
                "text": instruction.text,
                "source_request_id": instruction.source,
            }
        )

    async def delivered(self, node: Node, event_ids: list[str]) -> None:
        """The messages of these ids stand in the conversation of `node`."""
        await self.journal(node).append({"type": "instructions_delivered", "event_ids": event_ids})

    async def fail_instructions(self, node: Node, reason: str) -> None:
        """Tell the parent of each message that `node` will not hear any more."""
        for instruction in node.instructions.take():
            await self.journal(node).append(
                {"type": "instruction_failed", "event_id": instruction.id, "reason": reason}
            )
            if node.parent is not None:
                content = {"agent_id": node.id, "message_id": instruction.id, "reason": reason}
                await self.publish(node.parent, "agent.delivery_failed", node.id, content, required=True)

    async def tell_outcome(self, node: Node, status: AgentStatus) -> None:
        """Tell the parent that `node` has answered or ended, and is about to be in that status."""
        assert node.parent is not None
        answer = (node.answer or "").encode("utf-8", "replace")[-SHOWN_ANSWER:].decode("utf-8", "ignore")
        content = {
            "agent_id": node.id,
            "name": node.name,
            "status": status,
            "answer": answer,
            "turns": node.turns,
            "error": node.error,
        }
        node.told = await self.publish(
            node.parent, "agent.completed", node.id, content, required=True, source=node.request_id
        )


def check_message(text: str) -> None:
    """CallError if `text` is too long for a message."""
    if len(msgspec.json.encode(text)) > MESSAGE_LIMIT:
        raise CallError("invalid_argument", f"message exceeds {MESSAGE_LIMIT} bytes")
