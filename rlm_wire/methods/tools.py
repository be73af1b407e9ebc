"""Tool calls, harness → worker: bash, edit, fetch; and the captured output that they and cells share."""

from __future__ import annotations

import builtins
from typing import Never

import msgspec

from rlm_wire.methods.base import Request, StreamRequest


class Output(msgspec.Struct, frozen=True):
    """Captured output of a command or cell: its first and last bytes, and exact sizes of the whole stream.

    `head` and `tail` hold at most 512 KiB each, raw. `bytes`, `chars` and `lines` (newlines) count the whole stream;
    `omitted` is the number of bytes between head and tail that were not kept (0: head + tail is everything).
    """

    head: builtins.bytes = b""
    tail: builtins.bytes = b""
    bytes: int = 0
    chars: int = 0
    lines: int = 0
    omitted: int = 0

    @property
    def text(self) -> str:
        """The output as UTF-8 text, invalid bytes replaced; a marker names the omitted bytes, if any."""
        if not self.omitted:
            return (self.head + self.tail).decode("utf-8", "replace")
        # A character cut by the gap is part of what was omitted, not a broken character.
        head = self.head.decode("utf-8", "replace").rstrip("\ufffd")
        tail = self.tail.decode("utf-8", "replace").lstrip("\ufffd")
        return f"{head}\n[... {self.omitted} bytes omitted ...]\n{tail}"


class OutputChunk(msgspec.Struct, frozen=True):
    """Live output, in order; chunks may end inside a character. At most 64 KiB.

    `skipped` bytes before `data` are missing, as the receiver was slower than the command; the result has them.
    """

    data: bytes
    skipped: int = 0


class BashResult(msgspec.Struct, frozen=True):
    """How a command ended. `exit_code` is None if it was killed (`signal` says by what); `duration` in seconds.

    `notices` are sentences about what happened around it, for the model: a fallback directory, daemons left running.
    """

    exit_code: int | None
    output: Output
    timed_out: bool = False
    cancelled: bool = False
    duration: float = 0.0
    signal: int | None = None
    notices: list[str] = []


class Bash(StreamRequest[BashResult, OutputChunk, Never], tag="tools.bash"):
    """Run `command` with a fresh bash. stdin is empty; stdout and stderr are one stream.

    `timeout` in seconds (None: no limit); `cwd` relative to the agent's; `env` is laid over the agent's environment.
    Cancelling stops the command's processes and answers the partial result.
    """

    agent: str
    command: str
    timeout: float | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None


class EditResult(msgspec.Struct, frozen=True):
    """`path` is absolute; `line` is the 1-based line of the replacement; `notices` tell what could not be kept."""

    path: str
    replacements: int = 1
    line: int = 0
    notices: list[str] = []


class Edit(Request[EditResult], tag="tools.edit"):
    """Replace the one occurrence of `old` in the UTF-8 file `path` by `new`, byte-exact outside of it, atomically.

    Fails with `not_found` (no such file), `failed_precondition` (`old` occurs not once: data {"count": n}; read-only),
    `invalid_argument` (empty `old`, not UTF-8, not a regular file), `resource_exhausted` (too large, disk full).
    """

    agent: str
    path: str
    old: str
    new: str


class FetchResult(msgspec.Struct, frozen=True):
    """`url` is the final one; `text` at most `max_chars`, `truncated` if it was cut; `chars` counts the whole text."""

    url: str
    status: int
    content_type: str
    text: str
    chars: int
    bytes: int
    truncated: bool = False


class Fetch(Request[FetchResult], tag="tools.fetch"):
    """GET `url` (https assumed), follow redirects, and give its text: HTML as readable text, other text as it is.

    Fails with `invalid_argument` (no HTTP URL), `unavailable` (not reached), `deadline_exceeded`, `resource_exhausted`.
    An HTTP error status is a result, not a failure.
    """

    agent: str
    url: str
    max_chars: int = 20_000
    timeout: float = 45.0
