"""The room that the output of all jobs and services of a session shares, and how it is made when it runs out."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

T = TypeVar("T")

DISK_THREADS = 4
"""Threads that may wait for a slow disk at a time: output waits for it, nothing else does."""


class Disk:
    """A directory of our own, made when first needed, and how many bytes in it are used. Made by `open_disk`."""

    def __init__(self, parent: Callable[[], str | None], limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.make_room: Callable[[], Awaitable[bool]] | None = None
        """Frees what can be spared, and says whether it freed anything."""
        self._parent = parent
        self._directory: str | None = None
        self._making = threading.Lock()
        self._threads = trio.CapacityLimiter(DISK_THREADS)

    async def take(self, size: int) -> bool:
        """Reserve `size` bytes; False if they cannot be had."""
        while self.used + size > self.limit:
            if self.make_room is None or not await self.make_room():
                return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run something that waits for the disk. Cancellation: not noticed until it is done."""
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._threads)

    def create(self, name: str) -> tuple[int, Path]:
        """A new file, open for writing, and its path; to be called in a thread. Raises OSError."""
        with self._making:
            if self._directory is None or not Path(self._directory).is_dir():
                self._directory = tempfile.mkdtemp(prefix="rlm-output-", dir=self._parent())
            path = Path(self._directory, f"{name}.bin")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), path

    async def close(self) -> None:
        if self._directory is not None:
            await self.in_thread(shutil.rmtree, self._directory, True)


@asynccontextmanager
async def open_disk(parent: Callable[[], str | None], limit: int) -> AsyncIterator[Disk]:
    """Room for `limit` bytes in a new directory below `parent()` (None: the system's); removed with the block."""
    disk = Disk(parent, limit)
    try:
        yield disk
    finally:
        with trio.CancelScope(shield=True):
            await disk.close()
