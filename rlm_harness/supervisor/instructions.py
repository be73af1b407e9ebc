"""What a parent has told its child and the child has not heard yet. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["instruction", "steer"]
"""`steer`: for the next step; `instruction`: for when the child answers or waits."""

INSTRUCTIONS_LIMIT: Final = 10_000
"""Of one agent in its queue: more is a parent that has lost its way."""


class Instruction(msgspec.Struct, frozen=True):
    id: str
    kind: Kind
    text: str
    created_at: float
    source: str | None = None
    """The record of the parent's reply that it comes from."""


class Instructions:
    """The queue of one agent."""

    def __init__(self, limit: int = INSTRUCTIONS_LIMIT) -> None:
        self._limit = limit
        self._queue: deque[Instruction] = deque()
        self._steering = 0
        self._sources: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        return len(self._queue) >= self._limit

    def add(self, instruction: Instruction) -> None:
        self._queue.append(instruction)
        self._steering += instruction.kind == "steer"
        if instruction.source is not None:
            self._sources[instruction.id] = instruction.source

    def take(self) -> list[Instruction]:
        """All of them, in order; they are out of the queue then."""
        taken = list(self._queue)
        self._queue.clear()
        self._steering = 0
        return taken

    def heard(self, instruction_id: str) -> str | None:
        """The `source` of one that was taken, once: it has been heard."""
        return self._sources.pop(instruction_id, None)

    def take_steering(self) -> list[Instruction]:
        """Those for the next step, in order."""
        if not self._steering:
            return []
        taken = [instruction for instruction in self._queue if instruction.kind == "steer"]
        self._queue = deque(instruction for instruction in self._queue if instruction.kind != "steer")
        self._steering = 0
        return taken
