"""Reads a ledger, also one that is being written, or whose writer was killed. Blocking: for threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, get_args

import msgspec

from rlm_harness.ledger.files import LEDGER, read
from rlm_harness.ledger.records import Record
from rlm_harness.model.interface import Message


class LedgerDamaged(Exception):
    """The file is no ledger, or no longer: says which line, and what is wrong with it."""


class Window(msgspec.Struct, frozen=True):
    """What the model saw in one window: its messages in order, and where they stand among all."""

    index: int
    reason: str
    message_indices: list[int]
    messages: list[Message]


class History(msgspec.Struct, frozen=True):
    """A snapshot of a ledger: `events` are all its records, `messages` those of the model and its tools, by index.

    `size` is the bytes of the complete records, `torn` those of an unfinished one behind them, which was never
    acknowledged and is no part of anything here.
    """

    events: list[dict[str, Any]]
    messages: list[Message]
    windows: list[Window]
    size: int
    torn: int

    def user_messages(self) -> list[dict[str, Any]]:
        """The records of all that was asked, also in attempts that were rolled back."""
        return self.of("user")

    def of(self, *types: str) -> list[dict[str, Any]]:
        """The records of these types."""
        return [event for event in self.events if event["type"] in types]


class Gap(msgspec.Struct, frozen=True):
    """Lines of a ledger, one behind the other, that cannot be read: the first and last, counted from 1.

    `problem` is what is wrong with the first. `place` says how many records were read before them.
    """

    first: int
    last: int
    problem: str
    place: int


class Remains(msgspec.Struct, frozen=True):
    """What can be read of a damaged ledger: to be looked at, as nothing can be built on it. `gaps` are left out.

    There are no gaps where each record can be read, but not all are there. See `History` for the rest.
    """

    events: list[dict[str, Any]]
    gaps: list[Gap]
    size: int
    torn: int


_KNOWN: Final = {kind.__struct_config__.tag: kind for kind in get_args(Record)}

Timestamp: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=16_725_225_600)]
"""Unix time, up to the year 2500: what a calendar can show."""


class _Head(msgspec.Struct):
    """What every record must have to be in its place."""

    type: str
    timestamp: Timestamp = 0.0
    message: Message | None = None
    message_index: int | None = None
    window: int | None = None
    message_indices: list[int] = []
    reason: Any = None


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Shape(msgspec.Struct):
    """What every message must have for its readers."""

    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] = []
    tool_call_id: str | None = None


def read_history(directory: Path) -> History:
    """The ledger in `directory`, up to its last complete record. Raises OSError or LedgerDamaged."""
    path = directory / LEDGER
    data = read(path)
    *lines, rest = data.split(b"\n")
    reading = _Reading()
    for number, line in enumerate(lines, 1):
        try:
            reading.take(line)
        except _UNREADABLE as error:
            raise LedgerDamaged(f"line {number} of {path} is damaged: {error}") from None
    return History(reading.events, reading.messages, reading.windows(), len(data) - len(rest), len(rest))


def read_remains(directory: Path) -> Remains:
    """What can be read of the ledger in `directory`, each line for itself. Raises OSError."""
    data = read(directory / LEDGER)
    *lines, rest = data.split(b"\n")
    events: list[dict[str, Any]] = []
    gaps: list[Gap] = []
    for number, line in enumerate(lines, 1):
        try:
            events.append(_record(line, msgspec.json.decode(line, type=_Head)))
        except _UNREADABLE as error:
            if gaps and gaps[-1].last == number - 1:
                gaps[-1] = msgspec.structs.replace(gaps[-1], last=number)
            else:
                gaps.append(Gap(number, number, str(error), len(events)))
    return Remains(events, gaps, len(data) - len(rest), len(rest))


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError, ValueError)


def _record(line: bytes, head: _Head) -> dict[str, Any]:
    """The record in `line` if it has the shape that its readers rely on. Raises one of _UNREADABLE."""
    if head.message is not None:
        shape = msgspec.convert(head.message, _Shape)
        if shape.role == "tool" and shape.tool_call_id is None:
            raise ValueError("a tool's result does not say of which call")
    if (kind := _KNOWN.get(head.type)) is not None:  # others are from a later version
        msgspec.json.decode(line, type=kind)
    record: dict[str, Any] = msgspec.json.decode(line)
    return record


class _Reading:
    """What was read so far."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.messages: list[Message] = []
        self._windows: list[tuple[str, list[int]]] = []

    def take(self, line: bytes) -> None:
        """Raises one of _UNREADABLE, for instance ValueError that says which invariant does not hold."""
        head = msgspec.json.decode(line, type=_Head)
        if head.type == "context_window":
            self._open_window(head)
        elif head.message is not None:
            self._add_message(head, head.message)
        elif head.message_index is not None:
            raise ValueError("a record without a message has the index of one")
        self.events.append(_record(line, head))

    def _open_window(self, head: _Head) -> None:
        if head.window != len(self._windows):
            raise ValueError(f"window {head.window} follows {len(self._windows)} others")
        if any(not 0 <= index < len(self.messages) for index in head.message_indices):
            raise ValueError("a window begins with a message that is not there")
        self._windows.append((str(head.reason), list(head.message_indices)))

    def _add_message(self, head: _Head, message: Message) -> None:
        if head.message_index != len(self.messages):
            raise ValueError(f"message {head.message_index} follows {len(self.messages)} others")
        if head.window is not None:
            if not self._windows or head.window != len(self._windows) - 1:
                raise ValueError(f"window {head.window} is not open")
            self._windows[-1][1].append(len(self.messages))
        self.messages.append(message)

    def windows(self) -> list[Window]:
        def messages_at(indices: Sequence[int]) -> list[Message]:
            return [self.messages[index] for index in indices]

        return [
            Window(number, reason, indices, messages_at(indices))
            for number, (reason, indices) in enumerate(self._windows)
        ]
