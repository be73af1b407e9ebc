"""One agent's conversation: what its model sees next, and the ledger that has all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import trio

from rlm_harness.ledger import records
from rlm_harness.ledger.writer import Ledger
from rlm_harness.model.interface import Message


class Mark(msgspec.Struct, frozen=True):
    """A point of a conversation to go back to."""

    messages: list[Message]
    indices: list[int]
    size: int


PICTURE_SIZE: Final = 6000
"""Bytes of text that cost about as many tokens as a picture, however large that is."""


def message_size(message: Message) -> int:
    """Bytes of `message` as it is sent; of a picture, those of as much text."""
    content = message.get("content")
    if not isinstance(content, list):
        return len(msgspec.json.encode(message))
    texts = [part for part in content if part.get("type") != "image_url"]
    size = len(msgspec.json.encode({**message, "content": texts}))
    return size + PICTURE_SIZE * (len(content) - len(texts))


class Conversation:
    """The messages of the current window, each of which stands in the ledger before anything is built on it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.messages: list[Message] = []
        """What the model sees next; to be read only."""
        self.size = 0
        """Bytes of `messages` as they are sent."""

    async def add(self, record: records.MessageRecord) -> None:
        """To the ledger, and to what the model sees next. Raises LedgerError. Cancellation: none."""
        await self.ledger.append(record)
        self.messages.append(record.message)
        self.size += message_size(record.message)

    async def add_aside(self, record: records.MessageRecord) -> int:
        """To the ledger alone; its message index. Raises LedgerError. Cancellation: none."""
        await self.ledger.append(record, in_context=False)
        assert record.message_index is not None
        return record.message_index

    def mark(self) -> Mark:
        """This point, for `roll_back`."""
        return Mark(list(self.messages), self.ledger.context, self.size)

    def point(self, messages: list[Message], indices: list[int]) -> Mark:
        """Another point, at which the model saw `messages`, which stand at `indices`."""
        return Mark(messages, indices, sum(map(message_size, messages)))

    def restore(self, messages: list[Message]) -> None:
        """Take up what the ledger's current window holds."""
        self.messages, self.size = messages, sum(map(message_size, messages))

    async def roll_back(self, mark: Mark, rollback: records.PromptRollback) -> None:
        """Go on from `mark`, in a new window. The model sees what it saw then even if LedgerError is raised."""
        self.messages, self.size = list(mark.messages), mark.size
        await self.ledger.append(rollback)
        await self.ledger.open_window("rollback", mark.indices)

    async def compact(self, summary: Message, compaction: records.Compaction, kept: Sequence[int]) -> None:
        """Go on in a new window: the system message, `summary`, and of this window the messages at `kept`.

        `compaction` describes it; what depends on the ledger is filled in here. Raises LedgerError.
        Cancellation: none; it is done whole.
        """
        with trio.CancelScope(shield=True):
            indices, chosen = self.ledger.context, [0, *kept]
            compaction.summary_message_index = await self.add_aside(records.ContextMessage(message=summary))
            compaction.window = self.ledger.window + 1
            await self.ledger.append(compaction)
            first, *rest = [indices[place] for place in chosen]
            await self.ledger.open_window("compaction", [first, compaction.summary_message_index, *rest])
            first_message, *others = [self.messages[place] for place in chosen]
            self.messages = [first_message, summary, *others]
            self.size = sum(map(message_size, self.messages))
