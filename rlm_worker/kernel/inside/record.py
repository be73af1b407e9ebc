"""What one cell leaves behind, as plain bounded text and bytes: its result, its rich displays, its error.

Only bounding and flattening. Whatever user objects produced becomes str or bytes here, within limits that keep an
outcome below the wire's message limit of 16 MiB with room for 1 MiB of output, so that encoding it cannot fail.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from rlm_wire.methods.kernels import CellError, CellOutcome, Display

MIB: Final = 1 << 20
RESULT_LIMIT: Final = 1 * MIB  # text/plain of the last expression
DISPLAYS_LIMIT: Final = 8 * MIB  # all bundles of one cell together: a dozen large plots
DISPLAYS_COUNT: Final = 16
TRACEBACK_LIMIT: Final = 256 << 10
MESSAGE_LIMIT: Final = 64 << 10
NAME_LIMIT: Final = 200  # of an exception's class, of a MIME type
JSON_DEPTH: Final = 64

_COLOURS = re.compile("\x1b\\[[0-9;]*m")


def bounded(text: str, limit: int) -> str:
    """`text` as encodable text of at most `limit` UTF-8 bytes; a cut one ends in a line that says its true length."""
    head = text[:limit].encode("utf-8", "backslashreplace")
    if len(text) <= limit and len(head) <= limit:
        return head.decode()
    return f"{head[:limit].decode('utf-8', 'ignore')}\n[... cut here: {len(text)} characters in all ...]"


def class_name(value: object) -> str:
    """The name of its class, whatever its metaclass says."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return str.__str__(name)


class CellRecord:
    """Collects one cell's results while it runs. Never raises on hostile values."""

    def __init__(self, shown: BaseException | None = None) -> None:
        self.shown = shown
        """What IPython showed last before this cell: showing it again (`%tb`) is not an error of this cell."""
        self.result: str | None = None
        self.displays: list[Display] = []
        self.notices: list[str] = []
        self.reports: list[tuple[BaseException, str]] = []  # each exception that IPython showed, with its traceback
        self._room = DISPLAYS_LIMIT
        self._refused = 0

    def set_result(self, bundle: Mapping[str, Any]) -> None:
        """Take the bundle of a last expression: its plain text is the result; a rich one is a display as well."""
        text = bundle.get("text/plain")
        if isinstance(text, str):
            before = "" if self.result is None else f"{self.result}\n"  # IPython can be set to show every expression
            self.result = bounded(before + text, RESULT_LIMIT)
        if set(bundle) - {"text/plain"}:
            self.add_display(bundle)

    def add_display(self, bundle: Mapping[str, Any]) -> None:
        """Keep a MIME bundle, or count it as refused when the cell's share is used up."""
        data = {str(mime)[:NAME_LIMIT]: _flat(str(mime), value) for mime, value in bundle.items()}
        size = sum(len(value) if isinstance(value, bytes) else 4 * len(value) for value in data.values())
        if len(self.displays) == DISPLAYS_COUNT or size > self._room:
            self._refused += 1
            return
        self._room -= size
        self.displays.append(
            Display(
                text={mime: value for mime, value in data.items() if isinstance(value, str)},
                binary={mime: value for mime, value in data.items() if isinstance(value, bytes)},
            )
        )

    def report(self, error: BaseException, traceback: str) -> None:
        """Take an exception that IPython would show, and its traceback, whose colours (a cell may ask for them) go."""
        traceback = _COLOURS.sub("", traceback)
        self.reports.append((error, bounded(traceback, TRACEBACK_LIMIT)))

    def outcome(self, error: BaseException | None, *, interrupted: bool) -> CellOutcome:
        """Close the record. `error` is what ended the cell, if anything did."""
        if error is None and self.reports:  # IPython swallowed it: a failing __repr__, a figure that cannot be drawn
            error = self.reports[0][0]
        if self._refused:
            self.notices.append(
                f"{self._refused} displays were dropped: a cell keeps at most {DISPLAYS_COUNT} of together"
                f" {DISPLAYS_LIMIT // MIB} MiB. Save large ones to files."
            )
        if isinstance(error, SystemExit):
            self.notices.append("SystemExit ended this cell only: the kernel and its variables live on.")
            if error.code in (None, 0):
                error = None
        status: Literal["ok", "error", "interrupted"] = "ok"
        if error is not None:
            status = "interrupted" if interrupted else "error"
        return CellOutcome(
            status=status,
            result=self.result,
            displays=self.displays,
            error=None if error is None else self.describe(error),
            notices=self.notices,
        )

    def describe(self, error: BaseException) -> CellError:
        """What went wrong, in words; whatever the exception's class makes of being asked."""
        try:
            message = str.__str__(str(error))  # the text itself, where __str__ gave a subclass with methods of its own
        except BaseException as failure:  # noqa: BLE001  user code's __str__ may raise anything
            message = f"<its __str__ raised {class_name(failure)}>"
        name = bounded(class_name(error), NAME_LIMIT)
        traceback = "\n".join(text for _, text in self.reports) or f"{name}: {message}"
        return CellError(name, bounded(message, MESSAGE_LIMIT), bounded(traceback, TRACEBACK_LIMIT))


def _flat(mime: str, value: Any) -> str | bytes:
    """One entry of a bundle as text, or as bytes where its MIME type is a binary one."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        if _is_binary(mime):
            try:
                return base64.b64decode(value, validate=False)
            except (binascii.Error, ValueError):
                pass
        return value.encode("utf-8", "backslashreplace").decode()
    if depth_exceeds(value, JSON_DEPTH):
        return f"<{type(value).__name__} nested deeper than {JSON_DEPTH}>"
    try:
        return json.dumps(value, default=lambda other: f"<{type(other).__name__}>")
    except Exception as failure:  # noqa: BLE001  user objects in the bundle may raise anything
        return f"<{type(value).__name__} that is not JSON: {type(failure).__name__}>"


def _is_binary(mime: str) -> bool:
    kind = mime.partition("/")[0]
    return (kind in ("image", "audio", "video") and mime != "image/svg+xml") or mime == "application/pdf"


def depth_exceeds(value: Any, limit: int) -> bool:
    """Whether containers are nested deeper than `limit` in `value`; also if they contain themselves.

    Walks level by level: a raised recursion limit must not let an encoder overflow the C stack.
    """
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            if isinstance(parent, (dict, list, tuple))
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return True
