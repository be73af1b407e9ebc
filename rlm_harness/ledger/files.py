"""The files of a ledger: where they are, who may write them, and when they are safe. Blocking: for threads.

Layout: `$RLM_HOME/sessions/<12 hex>/` with `messages.jsonl` and `meta.json` (`~/.rlm` without RLM_HOME), and the same
again in `sub-<8 hex>/` for each child agent, readable by the owner only. Whoever writes a ledger holds a lock on it,
which the system takes back when it dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from pathlib import Path
from typing import Final

from rlm_harness.secrets import UserError

LEDGER: Final = "messages.jsonl"
META: Final = "meta.json"

LOCK_PATIENCE: Final = 0.5
"""Seconds to try for the lock: somebody may be looking whether it is held."""


def sessions_directory() -> Path:
    home = os.environ.get("RLM_HOME")
    return (Path(home) if home else Path.home() / ".rlm") / "sessions"


def create(parent: Path, name: str) -> tuple[Path, int]:
    """Make a session's directory, if there is none, and its ledger, which must be new, locked. Raises OSError."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = parent / name
    directory.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(directory / LEDGER, flags, 0o600)
    _lock(descriptor, directory)
    return directory, descriptor


def reopen(directory: Path) -> int:
    """Open the ledger in `directory` to go on with it, locked. Raises OSError; UserError if somebody else writes it."""
    descriptor = os.open(directory / LEDGER, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    _lock(descriptor, directory)
    return descriptor


def _lock(descriptor: int, directory: Path) -> None:
    """Lock the ledger; if that cannot be, `descriptor` is closed."""
    pause = threading.Event()
    deadline = time.monotonic() + LOCK_PATIENCE
    while not _try_lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            os.close(descriptor)
            raise UserError(f"session {directory.name} is in use by another process: wait for it, or end that first")
        pause.wait(0.01)


def read(path: Path, size: int = -1) -> bytes:
    """The file's first `size` bytes, or all. Raises OSError, also for a pipe, whose reader would wait for ever."""
    with open(_open_file(path), "rb") as file:
        return file.read(size)


def _open_file(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return descriptor


def is_in_use(directory: Path) -> bool:
    """Whether somebody writes the ledger in `directory` at this moment. Raises OSError."""
    descriptor = _open_file(directory / LEDGER)
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_all(descriptor: int, data: bytes) -> None:
    """Raises OSError; a part may have been written then."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def make_safe(descriptor: int, directory: Path) -> None:
    """Return when the ledger, and its directory's place in that above, would survive the machine. Raises OSError."""
    _synchronize(descriptor)
    for place in (directory, directory.parent):
        opened = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _synchronize(opened)
        finally:
            os.close(opened)


def _synchronize(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that promises nothing
            raise


def replace(path: Path, data: bytes) -> None:
    """Make `data` the file's content in one step, for the owner only. Raises OSError."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)
    temporary.replace(path)
