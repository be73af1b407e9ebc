"""Results of tools as the text that the model sees, and how long text is shortened. Pure.

The text of a result is an `Output`, as a command's output is: head, tail, and the exact sizes of the whole. So what was
captured with a gap, a wire away, is shortened by the same rule as text that is all here.
"""

from __future__ import annotations

import codecs

import msgspec

from rlm_harness.pictures import Picture, pictures_of
from rlm_wire.errors import CallError
from rlm_wire.methods.kernels import CellResult, Display
from rlm_wire.methods.tools import BashResult, EditResult, FetchResult, Output

MAX_RESULT = 20_000
"""Bytes of one tool result that the model sees whole."""


class Rendered(msgspec.Struct, frozen=True):
    """A result for the model: its whole text, and how the call ended (`ok`, `error`, `timed_out`, `cancelled`).

    `note` is the part of the text that is not the captured output; `recovery` must reach the model by messages of its
    own, where no shortening can hide it. `exit_code` is that of a command that ran to its end, `skill_calls` what a
    cell called, `pictures` what it has shown, for models that can see.
    """

    output: Output
    status: str = "ok"
    note: str = ""
    recovery: list[str] = []
    exit_code: int | None = None
    skill_calls: dict[str, int] = {}
    pictures: list[Picture] = []


def as_output(text: str) -> Output:
    data = text.encode("utf-8", "replace")
    return Output(head=data, bytes=len(data), chars=len(text), lines=text.count("\n"))


def join(first: Output, second: str) -> Output:
    """`first` with the lines of `second` behind it, on a line of their own."""
    if not second:
        return first
    ends_line = (first.tail or first.head or b"\n").endswith(b"\n")
    more = as_output(second if ends_line else f"\n{second}")
    return Output(
        head=first.head if first.omitted else first.head + first.tail + more.head,
        tail=first.tail + more.head if first.omitted else b"",
        bytes=first.bytes + more.bytes,
        chars=first.chars + more.chars,
        lines=first.lines + more.lines,
        omitted=first.omitted,
    )


def shorten(output: Output, limit: int = MAX_RESULT) -> str | None:
    """The first and last half of `limit` bytes of `output`, and how much there was in all; None if it fits.

    `limit` is at most 512 KiB, which is what a head and a tail are sure to hold together.
    """
    if output.bytes <= limit:
        return None
    beginning = output.head if output.omitted else output.head + output.tail
    ending = output.tail if output.omitted else beginning
    head = _without_cut_end(beginning[: limit // 2])
    tail = _without_cut_start(ending[len(ending) - (limit - limit // 2) :])
    return (
        f"[Shortened: this output is about {-(-output.chars // 4)} tokens long]\n"
        f"[Total output lines: {output.lines + 1}]\n"
        "\n"
        f"{head.decode('utf-8', 'replace')}\n"
        f"[... {output.bytes - len(head) - len(tail)} bytes omitted ...]\n"
        f"{tail.decode('utf-8', 'replace')}"
    )


def _without_cut_end(data: bytes) -> bytes:
    """A character that the end cuts is dropped; what is invalid by itself stays."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    cut, _ = decoder.getstate()
    return data[: len(data) - len(cut)]


def _without_cut_start(data: bytes) -> bytes:
    """At most three continuation bytes at the start are the rest of a character that was cut there."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def render_bash(result: BashResult, timeout: float | None) -> Rendered:
    lines = []
    status = "ok"
    if result.cancelled:
        status = "cancelled"
        lines.append("[the command was cancelled and stopped]")
    elif result.timed_out:
        status = "timed_out"
        lines.append(f"Error: command timed out after {_seconds(timeout)} and was stopped")
    elif result.exit_code is None:
        status = "error"
        lines.append(f"[killed by signal {result.signal}]")
    elif result.exit_code:
        lines.append(f"[exit code {result.exit_code}]")
    lines += [f"[{notice}]" for notice in result.notices]
    if not result.output.bytes and not lines:
        lines.append("(no output)")
    note = "\n".join(lines)
    return Rendered(join(result.output, note), status, note, exit_code=result.exit_code if status == "ok" else None)


def render_cell(result: CellResult, timeout: float | None) -> Rendered:
    lines = []
    if result.result is not None:
        lines.append(result.result)
    lines += [_image_note(display) for display in result.displays if _images(display)]
    if result.error is not None:
        lines.append(result.error.traceback)
    status = "error"
    match result.status:
        case "ok":
            status = "ok"
        case "timed_out":
            status = "timed_out"
            lines.append(f"[execution timed out after {_seconds(timeout)} and was interrupted]")
        case "interrupted":
            status = "cancelled"
            lines.append("[execution was cancelled and interrupted]")
        case "kernel_died":
            lines.append("[the kernel ended during this cell; it is not run again]")
        case "not_run":
            lines.append("[this cell was not run]")
        case "error":
            pass
    if not result.output.bytes and not lines:
        lines.append("(no output)")
    note = "\n".join(lines)
    return Rendered(
        join(result.output, note),
        status,
        note,
        result.notices,
        skill_calls=result.skill_calls,
        pictures=pictures_of(result.displays),
    )


def render_edit(result: EditResult) -> Rendered:
    done = f"Edited {result.path}: 1 replacement, at line {result.line}"
    return _all_note("\n".join([done, *(f"[{notice}]" for notice in result.notices)]))


def render_fetch(result: FetchResult) -> Rendered:
    status = f" (HTTP {result.status})" if result.status >= 300 else ""
    cut = f"\n... [truncated at {len(result.text)} of {result.chars} chars]" if result.truncated else ""
    return _all_note(f"URL: {result.url}{status}\n\n{result.text}{cut}")


def render_error(message: str) -> Rendered:
    return _all_note(message if message.startswith("Error: ") else f"Error: {message}", "error")


def render_failure(error: CallError) -> Rendered:
    """A call that the worker refused or could not do; `cancelled` only if somebody asked for it."""
    rendered = render_error(error.message)
    return msgspec.structs.replace(rendered, status="cancelled") if error.code == "cancelled" else rendered


def _all_note(text: str, status: str = "ok") -> Rendered:
    return Rendered(as_output(text), status, text)


def _images(display: Display) -> dict[str, bytes]:
    return {kind: data for kind, data in display.data.items() if isinstance(data, bytes)}


def _image_note(display: Display) -> str:
    return ", ".join(f"[{kind}, {len(data)} bytes]" for kind, data in _images(display).items())


def _seconds(timeout: float | None) -> str:
    return f"{timeout:g} s" if timeout is not None else "its time"
