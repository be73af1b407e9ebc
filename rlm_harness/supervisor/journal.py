"""inbox.jsonl: what came into an agent's inbox, what it read, and what became of its parent's messages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import trio

from rlm_wire.methods.inbox import InboxEvent


class Journal:
    """One agent's, beside its ledger. Each record is written before what it tells is acknowledged to anybody.

    A file that cannot be written stops nothing: `problem` says why, and the agent is told.
    """

    def __init__(self, directory: Path) -> None:
        self.problem: str | None = None
        self._path = directory / "inbox.jsonl"
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


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)
