"""`rlm.history()`: the agent's own conversation, as it stood when the cell began.

The kernel keeps what it has read, and asks for no more than what was added since. A record is parsed when it is looked
at; kept are its line and what it takes to find it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, overload

import msgspec

from rlm_wire.methods.ledger import ReadLedger
from rlm_worker.kernel.inside.api.calls import Calls, Error, operation


class Records(Sequence[dict[str, Any]]):
    """A read-only list of dicts, parsed anew at each access: keep what you need."""

    def __init__(self, lines: Sequence[bytes], numbers: Sequence[int], key: str | None = None) -> None:
        self._lines = lines
        self._numbers = numbers
        self._key = key

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Records:
        if isinstance(index, slice):
            return Records(self._lines, self._numbers[index], self._key)
        record = msgspec.json.decode(self._lines[self._numbers[index]])
        chosen: dict[str, Any] = record if self._key is None else record[self._key]
        return chosen

    def __repr__(self) -> str:
        return f"<{len(self)} records>"


class Window:
    """One context window: `messages` is what the model had before it, in order."""

    def __init__(self, index: int, messages: Records) -> None:
        self.index = index
        self.messages = messages

    def __repr__(self) -> str:
        return f"<window {self.index} of {len(self.messages)} messages>"


class History:
    """A snapshot of the ledger: `events` are all its records, `messages` those the model or its tools wrote, by index.

    `windows[w].messages` is what the model saw in window w. Call `rlm.history()` again for what has come since.
    """

    def __init__(self, events: Records, messages: Records, windows: list[Window], users: Records) -> None:
        self.events = events
        self.messages = messages
        self.windows = windows
        self._users = users

    def user_messages(self) -> Records:
        """The records of all that the user asked, also in attempts that were rolled back."""
        return self._users

    def __repr__(self) -> str:
        return f"<history of {len(self.events)} events, {len(self.messages)} messages, {len(self.windows)} windows>"


class _Head(msgspec.Struct):
    """What is read of a record to find it again."""

    type: str = ""
    message_index: int | None = None
    window: int | None = None
    message_indices: list[int] = []


class Ledger:
    """What this kernel has read of the ledger so far. Only ever grows."""

    def __init__(self) -> None:
        self.size = 0
        self._lines: list[bytes] = []
        self._messages: list[int] = []  # line number of each
        self._windows: list[list[int]] = []  # message indices of each
        self._users: list[int] = []  # line numbers
        self._rest = b""
        self._damage: str | None = None
        self._adding = threading.Lock()

    def add(self, start: int, data: bytes) -> None:
        """Take the bytes at `start`; harmless if another thread has added them meanwhile."""
        with self._adding:
            if start != self.size:
                return
            self.size += len(data)
            *complete, self._rest = (self._rest + data).split(b"\n")
            for line in complete:
                self._add(line)

    def snapshot(self) -> History:
        """What has been added so far. Error if that is no ledger."""
        with self._adding:
            if self._damage is not None:
                raise Error("internal", self._damage)
            lines, events = self._lines, range(len(self._lines))
            messages, users = self._messages[:], self._users[:]
            windows = [
                Window(index, Records(lines, [messages[message] for message in window], "message"))
                for index, window in enumerate(self._windows)
            ]
            return History(Records(lines, events), Records(lines, messages, "message"), windows, Records(lines, users))

    def _add(self, line: bytes) -> None:
        number = len(self._lines)
        self._lines.append(line)
        if self._damage is None:
            try:
                self._index(msgspec.json.decode(line, type=_Head), number)
            except (msgspec.DecodeError, IndexError, ValueError) as error:
                self._damage = f"line {number + 1} of the ledger is damaged: {error}"

    def _index(self, head: _Head, number: int) -> None:
        if head.type == "context_window":
            if head.window != len(self._windows) or any(not 0 <= i < len(self._messages) for i in head.message_indices):
                raise ValueError("windows are not contiguous")
            self._windows.append(list(head.message_indices))
        if head.message_index is not None:
            if head.message_index != len(self._messages):
                raise ValueError("message indices are not contiguous")
            self._messages.append(number)
            if head.window is not None:
                self._windows[head.window].append(head.message_index)
        if head.type == "user":
            self._users.append(number)


def history_of(calls: Calls) -> Callable[[], Any]:
    """The operation `rlm.history`."""
    ledger = Ledger()

    @operation
    async def history() -> History:
        """This agent's conversation up to the running cell, as a `History`. Only what is new is fetched."""
        promised = calls.ledger_size
        while promised is None or ledger.size < promised:
            chunk = await calls.request(ReadLedger(ledger.size, promised))
            if not chunk.data:
                break
            ledger.add(chunk.start, chunk.data)
        return ledger.snapshot()

    return history
