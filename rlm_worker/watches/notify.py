"""What the system tells of directories: one inotify descriptor and one task for all path watches of a session.

Directories are watched, never single files: a file that is saved by replacing it is then seen like any other.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import trio
from inotify_simple import INotify, flags, parse_events  # type: ignore[import-untyped]

from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError, Code

_CONTENT = flags.MODIFY | flags.CLOSE_WRITE | flags.ATTRIB
_NAMES = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
_SELF = flags.DELETE_SELF | flags.MOVE_SELF
MASK = _CONTENT | _NAMES | _SELF | flags.ONLYDIR | flags.EXCL_UNLINK

READ_SIZE = 64 * 1024
"""Bytes of events taken at once: some thousands, a few milliseconds of work."""

_CODES: dict[int, tuple[Code, str]] = {
    errno.ENOENT: ("not_found", "it does not exist"),
    errno.ENOTDIR: ("not_found", "it is not a directory"),
    errno.EACCES: ("permission_denied", "it cannot be read"),
    errno.ENOSPC: ("resource_exhausted", "the system watches too much already (fs.inotify.max_user_watches)"),
    errno.EMFILE: ("resource_exhausted", "the system has too many watchers (fs.inotify.max_user_instances)"),
}


class Listener(Protocol):
    """Who is told of what happens in a directory. Neither method may block."""

    def changed(self, directory: str, name: str, mask: int) -> None:
        """`name` in `directory` changed; "" stands for the directory itself."""

    def missed(self) -> None:
        """Something happened that the system had no room to tell."""


class Notify:
    """Listeners by directory. Made by `open_notify`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._inotify: INotify | None = None
        self._opening = trio.Lock()
        self._listeners: dict[int, dict[Listener, str]] = {}
        self._numbers: dict[tuple[Listener, str], int] = {}

    async def open(self) -> None:
        """Be ready for `listen`. Raises CallError("resource_exhausted") if the system has too many watchers."""
        async with self._opening:
            if self._inotify is None:
                try:  # in a thread, as the library looks for libc with the help of other programs
                    self._inotify = await trio.to_thread.run_sync(lambda: INotify(nonblocking=True))
                except OSError as error:
                    raise _error("the directory", error) from None
                self._nursery.start_soon(self._receive, self._inotify)

    def listen(self, directory: str, listener: Listener) -> None:
        """Tell `listener` of what happens in `directory` from now on. Needs `open`; harmless if it is told already.

        Raises CallError: `not_found`, `permission_denied`, `resource_exhausted`.
        """
        assert self._inotify is not None
        try:
            number = self._inotify.add_watch(directory, MASK)
        except OSError as error:
            raise _error(directory, error) from None
        if self._numbers.get((listener, directory)) != number:
            self.unlisten(directory, listener)  # there is another directory of that name now
            self._numbers[listener, directory] = number
            self._listeners.setdefault(number, {})[listener] = directory

    def unlisten(self, directory: str, listener: Listener) -> None:
        """Tell it no more."""
        number = self._numbers.pop((listener, directory), None)
        listeners = self._listeners.get(number) if number is not None else None
        if listeners is not None and number is not None:
            listeners.pop(listener, None)
            if not listeners:
                del self._listeners[number]
                if self._inotify is not None:
                    with suppress(OSError):  # the system has dropped it already
                        self._inotify.rm_watch(number)

    async def _receive(self, inotify: INotify) -> None:
        while True:
            await trio.lowlevel.wait_readable(inotify.fileno())
            with suppress(BlockingIOError):
                self._tell(os.read(inotify.fileno(), READ_SIZE))

    def _tell(self, events: bytes) -> None:
        for number, mask, _, name in parse_events(events):
            if mask & flags.Q_OVERFLOW:
                for listener in {one for listeners in self._listeners.values() for one in listeners}:
                    listener.missed()
            elif mask & flags.IGNORED:  # the directory is gone, and its number will not be used again
                for listener, directory in self._listeners.pop(number, {}).items():
                    if self._numbers.get((listener, directory)) == number:
                        del self._numbers[listener, directory]
            else:
                for listener, directory in list(self._listeners.get(number, {}).items()):
                    listener.changed(directory, name, mask)

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()


@asynccontextmanager
async def open_notify() -> AsyncIterator[Notify]:
    """The loop, which costs nothing until it is first used; it ends with the block."""
    with one_error():
        async with trio.open_nursery() as nursery:
            notify = Notify(nursery)
            try:
                yield notify
            finally:
                nursery.cancel_scope.cancel("the session is ending")
                notify.close()


def is_removal(mask: int) -> bool:
    return bool(mask & (flags.DELETE | flags.MOVED_FROM | _SELF))


def is_directory(mask: int) -> bool:
    return bool(mask & flags.ISDIR)


def is_arrival(mask: int) -> bool:
    return bool(mask & (flags.CREATE | flags.MOVED_TO))


def _error(path: str, error: OSError) -> CallError:
    code, reason = _CODES.get(error.errno or 0, ("failed_precondition", os.strerror(error.errno or 0)))
    return CallError(code, f"cannot watch {path}: {reason}")
