"""What the turn loop asks of whoever watches over its agent, and an agent that nobody watches over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlm_harness.events import Usage
from rlm_harness.ledger.records import MessageRecord


class BudgetExhausted(Exception):
    """A model call may not begin after all: the budget ran out while it waited. Says which (`max_tokens`)."""


class Supervision(Protocol):
    """Asked at the boundaries between steps: nothing that an agent does is ever interrupted for it."""

    @property
    def exhausted(self) -> str | None:
        """Why no further model call may begin (`max_turns`, `max_tokens`, `token_budget`), if so."""
        ...

    def turn_begins(self) -> None:
        """A model call is to be made."""
        ...

    def spent(self, usage: Usage) -> None:
        """What a model call took, also one for a summary."""
        ...

    def replied(self, record_id: str) -> None:
        """The model has replied, in that record."""
        ...

    def stepped(self, messages: int) -> None:
        """A step is done: a reply, and what it asked for. There are so many messages in the ledger now."""
        ...

    async def due(self) -> Sequence[MessageRecord]:
        """What the model is to be told before its next call."""
        ...

    async def due_at_end(self) -> Sequence[MessageRecord]:
        """What it is to be told where it has answered; it goes on then."""
        ...

    async def delivered(self, told: Sequence[MessageRecord]) -> None:
        """What was `due` is in the ledger and in the conversation."""
        ...

    def rolled_back(self) -> None:
        """The conversation is as it was before this prompt."""
        ...

    async def wait(self, seconds: float) -> bool:
        """Until something has come for the agent; False if it has not within `seconds`."""
        ...


class Unsupervised:
    """An agent on its own: nothing comes, and it has no budget but `max_turns` of its own."""

    exhausted: str | None = None

    def turn_begins(self) -> None:
        pass

    def spent(self, usage: Usage) -> None:
        pass

    def replied(self, record_id: str) -> None:
        pass

    def stepped(self, messages: int) -> None:
        pass

    async def due(self) -> Sequence[MessageRecord]:
        return ()

    async def due_at_end(self) -> Sequence[MessageRecord]:
        return ()

    async def delivered(self, told: Sequence[MessageRecord]) -> None:
        pass

    def rolled_back(self) -> None:
        pass

    async def wait(self, seconds: float) -> bool:
        raise NotImplementedError("without a supervisor there is no tool to wait with")
