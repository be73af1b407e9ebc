"""Keys and tokens: where they come from, and that they show up nowhere else."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rlm_wire.tokens import take_variable

_PR_SET_DUMPABLE = 4

REDACTED: Final = 6
"""Characters of a secret that is worth hiding."""


class UserError(Exception):
    """The user asked for something that cannot be; one line that says what to do instead."""


class Secret:
    """A key or token that never shows itself: not by repr, str or format; only `reveal()` gives the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def redact(self, text: str) -> str:
        """`text` without this secret: servers like to quote the key they refuse.

        One of less than REDACTED characters is a stand-in for none, and stands in many words.
        """
        return text.replace(self._text, "[secret]") if len(self._text) >= REDACTED else text

    def __repr__(self) -> str:
        return "Secret(...)"


def redact_all(text: str, secrets: Iterable[Secret]) -> str:
    """`text` without any of `secrets`, of which one may be a part of another."""
    for secret in sorted(secrets, key=lambda secret: -len(secret.reveal())):
        text = secret.redact(text)
    return text


def read_secret_file(path: str) -> Secret:
    """The secret in the file `path`, without surrounding white space. Raises UserError, which never quotes it."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if not text:
        raise UserError(f"{path} is empty")
    return _checked(text, path)


def take_secret(variable: str) -> Secret | None:
    """The secret in the environment variable, which is then gone: a local worker's commands are processes of this user.

    None if there is none. Raises UserError, which never quotes it.
    """
    text = os.fsdecode(take_variable(variable) or b"").strip()
    return _checked(text, variable) if text else None


def hide_process() -> None:
    """Keep this process's memory, descriptors and the environment it was started with from others of this user.

    Commands of a local worker run as the same user. Variables stay what they are, for us and for our children. A user
    with CAP_SYS_PTRACE can still read memory. Call it early, with one thread.
    """
    variables = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)  # copies: the block below belongs to no variable any more
    stat = Path("/proc/self/stat").read_text()
    start, end = map(int, stat[stat.rindex(")") + 2 :].split()[47:49])
    if 0 < start < end:  # 0 where the kernel does not tell
        ctypes.memset(start, 0, end - start)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _checked(text: str, source: str) -> Secret:
    # It goes into an HTTP header: a line break or a stray character must fail here, not be quoted in an error there.
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise UserError(f"the secret in {source} has characters that cannot be part of one")
    return Secret(text)
