"""What the supervisor does at the boundaries of one agent's loop: budgets, capacity, and what the agent is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from rlm_harness import prompts
from rlm_harness.events import MessageRead, Usage
from rlm_harness.ledger.records import MessageRecord, ParentMessage, SupervisorNotification, User
from rlm_harness.model.interface import Message, Model, Reply, ToolChoice, ToolSchema
from rlm_harness.supervision import BudgetExhausted
from rlm_harness.supervisor.instructions import Instruction
from rlm_harness.supervisor.mail import HUMAN
from rlm_harness.supervisor.tree import Node

if TYPE_CHECKING:
    from rlm_harness.events import Emit
    from rlm_harness.supervisor.budgets import Budgets
    from rlm_harness.supervisor.capacity import ModelSlots
    from rlm_harness.supervisor.mail import Mail


class Desk:
    """One agent's; a `Supervision`."""

    def __init__(self, node: Node, budgets: Budgets, mail: Mail, emit: Emit, *, has_inbox: bool) -> None:
        """`has_inbox`: the agent has a tool to look into it."""
        self._node = node
        self._budgets = budgets
        self._mail = mail
        self._emit = emit
        self._has_inbox = has_inbox
        self._has_waited = False
        self._told_problem: str | None = None

    @property
    def exhausted(self) -> str | None:
        if self._budgets.used_up_by(self._node.usage):
            return "token_budget"
        return self._budgets.exhausted

    def turn_begins(self) -> None:
        self._node.turns += 1
        self._budgets.turns += 1

    def spent(self, usage: Usage) -> None:
        self._node.usage += usage
        self._budgets.spend(usage)

    def replied(self, record_id: str) -> None:
        self._node.request_id = record_id

    def stepped(self, messages: int) -> None:
        self._node.messages = messages
        self._node.progress.notify()

    async def due(self) -> Sequence[MessageRecord]:
        queue = self._node.instructions
        instructions = queue.take() if self._has_waited else queue.take_steering()
        self._has_waited = False
        return [*map(self._parent_message, instructions), *self._notices()]

    async def due_at_end(self) -> Sequence[MessageRecord]:
        return [self._parent_message(instruction) for instruction in self._node.instructions.take()]

    async def delivered(self, told: Sequence[MessageRecord]) -> None:
        heard = [record.event_ids for record in told if isinstance(record, ParentMessage | User)]
        event_ids = [event_id for ids in heard for event_id in ids]
        if event_ids:
            await self._mail.delivered(self._node, event_ids)
        for event_id in event_ids:
            if (awaited := self._node.awaited.pop(event_id, None)) is not None:
                awaited.set()
            source, parent = self._node.instructions.heard(event_id), self._node.parent
            if parent is not None:
                await self._emit(MessageRead(parent.in_events, source))

    def rolled_back(self) -> None:
        self._node.inbox.forget_announcement()

    async def wait(self, seconds: float) -> bool:
        node = self._node
        before = node.status
        node.change("waiting")
        try:
            with trio.move_on_after(seconds):
                while not (node.inbox.ready or node.instructions):
                    await node.news.wait()
            ready = node.inbox.ready or bool(node.instructions)
        finally:
            node.change(before)
        node.inbox.end_wait()
        self._has_waited = True
        return ready

    def _parent_message(self, instruction: Instruction) -> ParentMessage:
        if self._node.parent is None:  # what a human says is not wrapped
            message: Message = {"role": "user", "content": instruction.text}
            provenance = {"from": HUMAN, "kind": instruction.kind}
            return ParentMessage(message=message, provenance=provenance, event_ids=[instruction.id])
        sender = self._node.parent.id
        return ParentMessage(
            message=prompts.agent_input(instruction.text, sender=sender, kind=instruction.kind),
            provenance={"from": "parent", "agent_id": sender, "kind": instruction.kind},
            event_ids=[instruction.id],
        )

    def _notices(self) -> list[SupervisorNotification]:
        notices = []
        inbox, problem = self._node.inbox, self._mail.journal(self._node).problem
        if problem is not None and problem != self._told_problem:
            self._told_problem = problem
            text = f"{problem}. Events are kept in memory only from now on."
            notices.append(_notice(text, error="journal"))
        if self._has_inbox and inbox.unannounced:
            inbox.announce()
            notices.append(_notice(prompts.unread_notice(inbox.unread), unread=str(inbox.unread)))
        return notices


def _notice(text: str, **attributes: str) -> SupervisorNotification:
    message: Message = prompts.runtime_event("notice", text, **attributes)
    return SupervisorNotification(message=message, provenance={"kind": "notice", **attributes})


class SlottedModel:
    """A model that the agents of a tree share: each call waits for a slot, the calls of summaries too."""

    def __init__(self, model: Model, slots: ModelSlots, budgets: Budgets, depth: int) -> None:
        self._model = model
        self._slots = slots
        self._budgets = budgets
        self._depth = depth

    @property
    def name(self) -> str:
        return self._model.name

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        emit: Emit,
        tool_choice: ToolChoice = "auto",
    ) -> Reply:
        """See `Model.reply`; raises BudgetExhausted as well. Cancellation: gives the slot back."""
        async with self._slots.slot(self._depth):
            if self._budgets.tokens_used_up:  # by those who were served first
                raise BudgetExhausted("max_tokens")
            return await self._model.reply(messages, tools, emit, tool_choice)
