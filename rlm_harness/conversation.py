"""One agent's conversation: what its model sees next, and the ledger that has all of it."""

from __future__ import annotations

import msgspec

from rlm_harness.ledger import records
from rlm_harness.ledger.writer import Ledger
from rlm_harness.model.interface import Message


class Mark(msgspec.Struct, frozen=True):
    """A point of a conversation to go back to."""

    messages: list[Message]
    indices: list[int]


class Conversation:
    """The messages of the current window, each of which stands in the ledger before anything is built on it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.messages: list[Message] = []
        """What the model sees next; to be read only."""

    async def add(self, record: records.MessageRecord) -> None:
        """To the ledger, and to what the model sees next. Raises LedgerError. Cancellation: none."""
        await self.ledger.append(record)
        self.messages.append(record.message)

    async def add_aside(self, record: records.MessageRecord) -> int:
        """To the ledger alone; its message index. Raises LedgerError. Cancellation: none."""
        await self.ledger.append(record, in_context=False)
        assert record.message_index is not None
        return record.message_index

    def mark(self) -> Mark:
        """This point, for `roll_back`."""
        return Mark(list(self.messages), self.ledger.context)

    async def roll_back(self, mark: Mark, rollback: records.PromptRollback) -> None:
        """Go on from `mark`, in a new window. The model sees what it saw then even if LedgerError is raised."""
        self.messages = list(mark.messages)
        await self.ledger.append(rollback)
        await self.ledger.open_window("rollback", mark.indices)
