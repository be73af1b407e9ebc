"""inbox.jsonl: what came into an agent's inbox, what it read, and what became of its parent's messages."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from rlm_wire.methods.inbox import InboxEvent

JOURNAL: Final = "inbox.jsonl"


class Journal:
    """One agent's, beside its ledger. Each record is written before what it tells is acknowledged to anybody.

    A file that cannot be written stops nothing: `problem` says why, and the agent is told.
    """

    def __init__(self, directory: Path) -> None:
        self.problem: str | None = None
        self._path = directory / JOURNAL
        self._encoder = msgspec.json.Encoder()
        self._lock = trio.Lock()

    async def append(self, record: InboxEvent | dict[str, Any]) -> None:
        """Write `record` as the next one. Cancellation: none; it is written whole."""
        line = self._encoder.encode(record) + b"\n"
        with trio.CancelScope(shield=True):
            async with self._lock:
                try:
                    await trio.to_thread.run_sync(_append, self._path, line)
                except OSError as error:
                    self.problem = f"{self._path.name} cannot be written: {error.strerror}"


def read_journal(directory: Path) -> list[dict[str, Any]]:
    """The records of a journal whose writer has ended; an unfinished one at the end is cut off. Blocking.

    What makes no sense is left out. None at all if the file is not there, or cannot be read.
    """
    path = directory / JOURNAL
    records: list[dict[str, Any]] = []
    with suppress(OSError):
        *lines, torn = path.read_bytes().split(b"\n")
        if torn:
            os.truncate(path, path.stat().st_size - len(torn))
        for line in lines:
            with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
                records.append(msgspec.json.decode(line, type=dict[str, Any]))
    return records


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)
