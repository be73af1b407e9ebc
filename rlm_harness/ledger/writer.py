"""Puts a session's records on disk. Knows files and order; what a record means is in `records`.

Layout: `$RLM_HOME/sessions/<12 hex>/messages.jsonl` and `meta.json` (`~/.rlm` without RLM_HOME), readable by the owner
only. Each record is handed to the operating system as one write before anything is built on it; it is not fsynced: it
survives the death of the harness, not always that of the machine.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from rlm_harness.ledger.records import ContextWindow, Record, WindowReason
from rlm_harness.secrets import UserError


class LedgerError(Exception):
    """A record could not be written; the session must not go on, since nothing may happen that is not recorded."""


def sessions_directory() -> Path:
    home = os.environ.get("RLM_HOME")
    return (Path(home) if home else Path.home() / ".rlm") / "sessions"


class Ledger:
    """The open ledger of one session; made by `create_ledger`. One writer per file, ever."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self.session = directory.name
        self._descriptor = descriptor
        self._encoder = msgspec.json.Encoder()
        self._lock = trio.Lock()
        self._failure: LedgerError | None = None
        self._messages = 0
        self._window = -1
        self._context: list[int] = []
        self._size = 0
        self._grown = trio.Event()

    @property
    def path(self) -> Path:
        return self.directory / "messages.jsonl"

    @property
    def context(self) -> list[int]:
        """The message indices of the current window, in order."""
        return list(self._context)

    @property
    def window(self) -> int:
        """The number of the current window."""
        return self._window

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self._size

    async def read(self, start: int, limit: int) -> bytes:
        """At most `limit` of the bytes from `start`, which must be below `size`. Raises OSError."""
        return await trio.to_thread.run_sync(os.pread, self._descriptor, min(limit, self._size - start), start)

    async def wait_beyond(self, size: int) -> None:
        """Wait until there are more than `size` bytes. Cancellation: harmless."""
        while self._size <= size:
            await self._grown.wait()

    async def append(self, record: Record, *, in_context: bool = True) -> None:
        """Write `record` as the next one, after filling in its `id`, `timestamp`, `message_index` and `window`.

        A record with a message joins the current window unless `in_context` is false. Raises LedgerError if it cannot
        be written; from then on every append does.
        Cancellation: none; a record that was begun is written whole.
        """
        with trio.CancelScope(shield=True):
            async with self._lock:
                await self._append(record, in_context=in_context)

    async def _append(self, record: Record, *, in_context: bool) -> None:
        if self._failure is not None:
            raise self._failure
        record.id = record.id or secrets.token_hex(8)
        record.timestamp = time.time()
        has_message = "message" in record.__struct_fields__
        if has_message:
            record.message_index = self._messages
            record.window = self._window if in_context else None
        elif isinstance(record, ContextWindow):
            record.window = self._window + 1
        await self._write(record)
        if has_message:
            self._messages += 1
        if isinstance(record, ContextWindow):
            self._window += 1
            self._context = list(record.message_indices)
        elif record.message_index is not None and in_context:
            self._context.append(record.message_index)

    async def _write(self, record: Record) -> None:
        line = self._encoder.encode(record) + b"\n"
        try:
            await trio.to_thread.run_sync(_write_all, self._descriptor, line)
        except OSError as error:
            # A torn line may stand at the end now; readers skip it, and a further record would only glue itself to it.
            self._failure = LedgerError(
                f"cannot write {self.path}: {error.strerror}; the session ends here, what was recorded before is kept"
            )
            raise self._failure from error
        self._size += len(line)
        self._grown.set()
        self._grown = trio.Event()

    async def open_window(self, reason: WindowReason, message_indices: list[int]) -> None:
        """Close the current window and begin the next with these earlier messages. See `append` for the rest."""
        await self.append(ContextWindow(reason=reason, message_indices=message_indices))

    async def write_meta(self, meta: dict[str, Any]) -> None:
        """Replace meta.json by `meta`, atomically. Raises LedgerError. Cancellation: none."""
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(_replace, self.directory / "meta.json", self._encoder.encode(meta))
            except OSError as error:
                raise LedgerError(f"cannot write {self.directory / 'meta.json'}: {error.strerror}") from error


@asynccontextmanager
async def create_ledger(directory: Path | None = None, name: str | None = None) -> AsyncIterator[Ledger]:
    """A new session below `directory` (None: `sessions_directory()`), with its ledger open and window 0 begun.

    `name` is that of its own directory, which must not be there yet; None makes one up.

    Raises UserError if it cannot be created. Cancellation: the files stay as they are.
    """
    parent = directory if directory is not None else sessions_directory()
    try:
        session, descriptor = await trio.to_thread.run_sync(_create, parent, name or secrets.token_hex(6))
    except OSError as error:
        raise UserError(
            f"cannot create a session in {parent}: {error.strerror} (RLM_HOME names another place)"
        ) from None
    try:
        ledger = Ledger(session, descriptor)
        await ledger.open_window("start", [])
        yield ledger
    finally:
        os.close(descriptor)


def _create(parent: Path, name: str) -> tuple[Path, int]:
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = parent / name
    directory.mkdir(mode=0o700)  # exclusive: an existing ledger is never opened for writing again
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    return directory, os.open(directory / "messages.jsonl", flags, 0o600)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(data + b"\n")
    temporary.replace(path)
