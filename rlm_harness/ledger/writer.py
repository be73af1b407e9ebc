"""Puts a session's records on disk, in order. Where that is, is in `files`; what a record means, in `records`.

Each record is handed to the operating system as one write before anything is built on it: it survives the death of the
harness. Where a prompt ends and where a window is closed, the disk is waited for as well: all up to there survives the
machine. In between the system writes by itself, usually within half a minute; waiting for each record would cost more
than the turns that it saves.
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

from rlm_harness.ledger import files
from rlm_harness.ledger.history import History, LedgerDamaged, read_history
from rlm_harness.ledger.records import ContextWindow, Done, Record, WindowReason
from rlm_harness.secrets import UserError


class LedgerError(UserError):
    """A record could not be written; the session must not go on, since nothing may happen that is not recorded."""


class Ledger:
    """The open ledger of one session; made by `create_ledger` or `reopen_ledger`. One writer per file at a time."""

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
        return self.directory / files.LEDGER

    @property
    def context(self) -> list[int]:
        """The message indices of the current window, in order."""
        return list(self._context)

    @property
    def window(self) -> int:
        """The number of the current window."""
        return self._window

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return self._messages

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
        be written; from then on every append does. A window that is closed and a prompt's end are on disk by then.
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
        lasting = isinstance(record, Done) or (isinstance(record, ContextWindow) and record.reason != "start")
        try:
            await trio.to_thread.run_sync(self._put, line, lasting)
        except OSError as error:
            # A torn line may stand at the end now; readers skip it, and a further record would only glue itself to it.
            self._failure = LedgerError(
                f"cannot write {self.path}: {error.strerror}; the session ends here, what was recorded before is kept"
            )
            raise self._failure from error
        self._size += len(line)
        self._grown.set()
        self._grown = trio.Event()

    def _put(self, line: bytes, lasting: bool) -> None:
        files.write_all(self._descriptor, line)
        if lasting:
            files.make_safe(self._descriptor, self.directory)

    async def open_window(self, reason: WindowReason, message_indices: list[int]) -> None:
        """Close the current window and begin the next with these earlier messages. See `append` for the rest."""
        await self.append(ContextWindow(reason=reason, message_indices=message_indices))

    async def write_meta(self, meta: dict[str, Any]) -> None:
        """Replace meta.json by `meta`, atomically. Raises LedgerError. Cancellation: none."""
        path = self.directory / files.META
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(files.replace, path, self._encoder.encode(meta) + b"\n")
            except OSError as error:
                raise LedgerError(f"cannot write {path}: {error.strerror}") from error

    def restore(self, history: History) -> None:
        """Go on behind `history`, which is what this file holds."""
        self._messages = len(history.messages)
        self._window = len(history.windows) - 1
        self._context = list(history.windows[-1].message_indices) if history.windows else []
        self._size = history.size


@asynccontextmanager
async def create_ledger(directory: Path | None = None, name: str | None = None) -> AsyncIterator[Ledger]:
    """A new session below `directory` (None: `sessions_directory()`), with its ledger open and window 0 begun.

    `name` is that of its own directory, which may be there, but without a ledger; None makes one up.

    Raises UserError if it cannot be created. Cancellation: the files stay as they are.
    """
    parent = directory if directory is not None else files.sessions_directory()
    try:
        session, descriptor = await trio.to_thread.run_sync(files.create, parent, name or secrets.token_hex(6))
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


@asynccontextmanager
async def reopen_ledger(directory: Path) -> AsyncIterator[tuple[Ledger, History]]:
    """The ledger of a session whose harness has ended, to go on with it; and what it holds.

    A torn record at its end is cut off: nobody was ever told that it was written. `History.torn` says how long it was.

    Raises UserError if there is none, somebody else is writing it, or it is damaged. Cancellation: the files stay.
    """
    try:
        descriptor = await trio.to_thread.run_sync(files.reopen, directory)
    except OSError as error:
        raise UserError(f"cannot open the ledger in {directory}: {error.strerror}") from None
    try:
        history = await trio.to_thread.run_sync(_recover, directory, descriptor)
        ledger = Ledger(directory, descriptor)
        ledger.restore(history)
        if not history.windows:  # it was killed before it had written anything
            await ledger.open_window("start", [])
        yield ledger, history
    finally:
        os.close(descriptor)


def _recover(directory: Path, descriptor: int) -> History:
    try:
        history = read_history(directory)
        os.ftruncate(descriptor, history.size)
    except (OSError, LedgerDamaged) as error:
        raise UserError(f"this session cannot be resumed: {error}") from None
    return history
