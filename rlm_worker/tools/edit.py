"""Replacing one piece of text in a file: exact in bytes, atomic, and keeping everything else about the file.

Links: the target of a symbolic link is edited and the link stays. A file with several hard links gets its new content
under the edited name only, as the file is replaced and not overwritten; the result says so.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from rlm_wire.errors import CallError, Code
from rlm_wire.methods.tools import EditResult
from rlm_worker.paths import checked_path

FILE_LIMIT = 64 * 1024 * 1024
"""Bytes of a file that can be edited. An edit holds the file twice in memory; source files are far smaller."""

_ATTEMPTS = 5
"""How often an edit starts anew when the file was replaced under it, before it gives up."""

_REASONS: dict[int, Code] = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.ELOOP: "not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "failed_precondition",
    errno.ENOSPC: "resource_exhausted",
    errno.EDQUOT: "resource_exhausted",
    errno.EMFILE: "resource_exhausted",
    errno.ENFILE: "resource_exhausted",
    errno.ENAMETOOLONG: "invalid_argument",
}

_NO_NEW_FILES = {errno.ENOENT, errno.EOPNOTSUPP}
"""How /proc and its like refuse a new file in a directory that is there."""

_replacing = threading.Lock()
"""Held while a file is compared with what was read and replaced: of two edits at once, the second sees the first."""


async def run_edit(path: str, old: str, new: str, *, cwd: str) -> EditResult:
    """Replace the one occurrence of `old` in the UTF-8 file `path` (relative to `cwd`) by `new`.

    Line ends are the file's: in a file with CRLF, text given with LF matches and is written with CRLF. A byte order
    mark, mode, owner and extended attributes stay. A file without any write permission is refused, to root as well.

    Raises CallError as `rlm_wire.methods.tools.Edit` says.
    Cancellation: waits for the thread that edits; the file is then the old one or the new one, and no other is left.
    """
    if not old:
        raise CallError("invalid_argument", "the text to replace is empty: give some text that occurs once in the file")
    return await trio.to_thread.run_sync(_edit, Path(cwd, checked_path(path)), old.encode(), new.encode())


def _edit(path: Path, old: bytes, new: bytes) -> EditResult:
    try:
        target = path.resolve(strict=True)
        for _ in range(_ATTEMPTS):
            with _opened(target) as (descriptor, status):
                content = _content(target, descriptor, status)
                start, end, inserted = _locate(path, content, old, new)
                edited = b"".join([content[:start], inserted, content[end:]])
                notices = _replace(target, descriptor, status, edited)
            if notices is not None:
                return EditResult(str(target), line=content.count(b"\n", 0, start) + 1, notices=notices)
    except (OSError, RuntimeError) as error:  # RuntimeError: symbolic links in a circle
        number = getattr(error, "errno", None) or errno.ELOOP
        code = _REASONS.get(number, "failed_precondition")
        raise CallError(code, f"cannot edit {path}: {os.strerror(number)}", retryable=number == errno.ENOSPC) from None
    raise CallError("failed_precondition", f"{path} keeps being changed by somebody else: try again", retryable=True)


@contextmanager
def _opened(target: Path) -> Iterator[tuple[int, os.stat_result]]:
    _check_regular(target, os.lstat(target))  # opening a device may do something already
    # Not blocking: or opening a named pipe, put there just now, would wait for its writer.
    descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        _check_regular(target, status)
        yield descriptor, status
    finally:
        os.close(descriptor)


def _check_regular(target: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise CallError("invalid_argument", f"{target} is not a regular file")


def _content(target: Path, descriptor: int, status: os.stat_result) -> bytes:
    if not status.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise CallError("failed_precondition", f"{target} is read-only: change its mode first if it is to be edited")
    if status.st_size > FILE_LIMIT:
        raise CallError(
            "resource_exhausted", f"{target} has {status.st_size} bytes, more than the {FILE_LIMIT} that can be edited"
        )
    with open(descriptor, "rb", closefd=False) as file:
        return file.read(FILE_LIMIT + 1)


def _locate(path: Path, content: bytes, old: bytes, new: bytes) -> tuple[int, int, bytes]:
    """Where `old` stands (start, end), and what is to stand there."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise CallError("invalid_argument", f"{path} is not UTF-8 text (byte {error.start})") from None
    only_crlf = b"\r\n" in content and content.count(b"\n") == content.count(b"\r\n")
    if old not in content and b"\r\n" in content:
        old, new = _with_crlf(old), _with_crlf(new)
    elif only_crlf and b"\r" not in old:
        new = _with_crlf(new)
    start = content.find(old)
    if start < 0:
        raise CallError("failed_precondition", f"the text to replace does not occur in {path}", data={"count": 0})
    if content.find(old, start + 1) >= 0:
        count = max(content.count(old), 2)  # 2 where occurrences overlap
        message = f"the text to replace occurs {count} times in {path}: give more of what surrounds it"
        raise CallError("failed_precondition", message, data={"count": count})
    return start, start + len(old), new


def _with_crlf(text: bytes) -> bytes:
    return re.sub(rb"(?<!\r)\n", b"\r\n", text)


def _replace(target: Path, original: int, status: os.stat_result, content: bytes) -> list[str] | None:
    """Put a new file with `content` in the place of `target`; None if that was changed since `status` was taken."""
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _new_file(target, directory) as (descriptor, put):
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            notices = _copy_attributes(target, original, status, descriptor)
            os.fsync(descriptor)
            with _replacing:
                if _version(os.stat(target.name, dir_fd=directory, follow_symlinks=False)) != _version(status):
                    return None
                put(target.name)
        os.fsync(directory)
    finally:
        os.close(directory)
    return notices


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def _new_file(target: Path, directory: int) -> Iterator[tuple[int, Callable[[str], None]]]:
    """A new file in `directory`, that of `target`; mode 0600: (descriptor, a function that renames it to an argument).

    Without a name until then where the file system can do that, so that not even SIGKILL leaves a temporary file.
    """
    name = f".{os.urandom(8).hex()}.edit"
    named = False
    try:
        descriptor = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, 0o600, dir_fd=directory)
        except OSError as error:
            forbidden = error.errno in (errno.EACCES, errno.EPERM)  # by the mode, if that would forbid it
            if error.errno in _NO_NEW_FILES or (forbidden and os.access(".", os.W_OK, dir_fd=directory)):
                message = f"{target} cannot be edited: its file system takes no new files; write to it with a command"
                raise CallError("invalid_argument", message) from None
            raise
        named = True

    def put(final: str) -> None:
        nonlocal named
        if not named:
            os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)
            named = True
        os.rename(name, final, src_dir_fd=directory, dst_dir_fd=directory)
        named = False

    try:
        yield descriptor, put
    finally:
        os.close(descriptor)
        if named:
            os.unlink(name, dir_fd=directory)


def _copy_attributes(target: Path, original: int, status: os.stat_result, descriptor: int) -> list[str]:
    """Give the new file owner, mode and extended attributes of the original; says what could not be kept."""
    notices = []
    if status.st_nlink > 1:
        notices.append(f"{target} had {status.st_nlink} hard links: the file keeps its old content under other names.")
    try:
        os.fchown(descriptor, status.st_uid, status.st_gid)
    except PermissionError:
        notices.append(f"{target} now belongs to the user who edited it.")
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))  # after chown, which takes set-user-id bits away
    with suppress(OSError):  # a file system without extended attributes
        for attribute in os.listxattr(original):
            with suppress(OSError):  # one that only root may set
                os.setxattr(descriptor, attribute, os.getxattr(original, attribute))
    return notices
