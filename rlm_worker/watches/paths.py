"""One path watch: what it covers, what it has gathered, and whether its path is still there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import trio

from rlm_wire.errors import CallError
from rlm_worker.watches.notify import Notify, is_arrival, is_directory, is_removal

BATCH = 0.2
"""Seconds for which changes are gathered: a save is several, and a build thousands."""

LIST_LIMIT = 32 * 1024
"""Bytes of a batch's paths as JSON."""

DIRECTORY_LIMIT = 8_192
"""Directories below one recursive watch: the system's own limit for a user can be as low as that."""


class Batch:
    """Paths that changed, bounded; sizes are counted as they come."""

    def __init__(self) -> None:
        self.truncated = False
        self._paths: set[str] = set()
        self._size = 2

    def add(self, path: str) -> None:
        path = os.fsencode(path).decode("utf-8", "replace")  # a name that is not UTF-8 has no exact text
        if path in self._paths or self.truncated:
            return
        size = len(msgspec.json.encode(path)) + 1
        if self._size + size > LIST_LIMIT:
            self.truncated = True
            return
        self._paths.add(path)
        self._size += size

    def __bool__(self) -> bool:
        return bool(self._paths) or self.truncated

    def paths(self) -> list[str]:
        return sorted(self._paths)


class PathWatch:
    """Gathers what happens to `path` (absolute, without symbolic links): a file, or a directory."""

    def __init__(self, notify: Notify, path: str, *, recursive: bool) -> None:
        self.path = path
        self._notify = notify
        self._recursive = recursive
        self._is_directory = False
        self._directories: set[str] = set()
        self._new: list[str] = []
        self._batch = Batch()
        self._some = trio.Event()
        self._maybe_gone = False

    async def begin(self) -> None:
        """Returns once the system is watching. May be called again. Raises CallError; see `watches.path`."""
        await self._notify.open()
        self._is_directory = await trio.to_thread.run_sync(os.path.isdir, self.path)
        if not self._is_directory:
            if not await trio.to_thread.run_sync(os.path.lexists, self.path):
                raise CallError("not_found", f"cannot watch {self.path}: it does not exist")
            self._listen(str(Path(self.path).parent))
        elif self._recursive:
            await self._listen_below([self.path], None)
        else:
            self._listen(self.path)

    def end(self) -> None:
        """Watch no more."""
        for directory in self._directories:
            self._notify.unlisten(directory, self)
        self._directories.clear()

    async def next_batch(self) -> Batch:
        """The changes of BATCH seconds, from the next one on. Raises CallError if the path was removed.

        Cancellation: what was gathered is dropped.
        """
        while True:
            await self._some.wait()
            await trio.sleep(BATCH)
            self._some = trio.Event()
            while self._new:
                new, self._new = self._new, []
                await self._listen_below(new, self._batch)
            if self._maybe_gone:
                await self._check_there()
            batch, self._batch = self._batch, Batch()
            if batch:
                return batch

    # ------------------------------------------------------------ told by Notify

    def changed(self, directory: str, name: str, mask: int) -> None:
        path = f"{directory.rstrip('/')}/{name}" if name else directory
        if not self._is_directory:
            if path == self.path or path == directory:
                self._maybe_gone |= is_removal(mask)
                if path == self.path:
                    self._batch.add(path)
                self._some.set()
            return
        if not name:
            self._maybe_gone |= path == self.path and is_removal(mask)
            if not self._maybe_gone:
                return  # what happens to a directory is told by the one above it, or nobody asked
        elif is_directory(mask) and self._recursive:
            self._follow(path, mask)
        self._batch.add(path)
        self._some.set()

    def missed(self) -> None:
        self._batch.truncated = True
        self._maybe_gone = True
        self._some.set()

    def _follow(self, path: str, mask: int) -> None:
        if is_arrival(mask):
            self._new.append(path)
        elif is_removal(mask):
            below = f"{path}/"
            for directory in [one for one in self._directories if one == path or one.startswith(below)]:
                self._directories.discard(directory)
                self._notify.unlisten(directory, self)

    # ------------------------------------------------------------------ watching

    def _listen(self, directory: str) -> None:
        self._notify.listen(directory, self)
        self._directories.add(directory)

    async def _listen_below(self, directories: list[str], batch: Batch | None) -> None:
        """Watch these and all directories below; each is listed only once it is watched, so that nothing is missed.

        With `batch`, they are new: what is in them already is told.
        """
        while directories:
            if len(self._directories.union(directories)) > DIRECTORY_LIMIT:
                raise CallError("resource_exhausted", f"{self.path} has more than {DIRECTORY_LIMIT} directories below")
            for directory in directories:
                try:
                    self._listen(directory)
                except CallError as error:
                    if directory == self.path or error.code == "resource_exhausted":
                        raise  # else it is gone again, or not ours to read
            listed = await trio.to_thread.run_sync(_list, directories)
            if batch is not None:
                for path, _ in listed:
                    batch.add(path)
            directories = [path for path, is_dir in listed if is_dir]

    async def _check_there(self) -> None:
        """It was removed, or replaced by another: then go on with that one."""
        self._maybe_gone = False
        try:
            await self.begin()
        except CallError as error:
            if error.code == "not_found":
                raise CallError("not_found", f"{self.path} was removed") from None
            raise


def _list(directories: Iterable[str]) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                found += [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError:
            continue  # gone, or not ours to read
    return found
