"""Lines at the bottom of a terminal that are drawn anew, below text that stays. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class Panel:
    """Remembers how many of its lines are on the screen."""

    def __init__(self, *, colour: bool) -> None:
        self._form = "\x1b[2m{}\x1b[0m\n" if colour else "{}\n"
        self._lines: list[str] = []

    def compose(self, text: str, lines: Sequence[str], *, open_line: bool) -> str:
        """What to write so that `text` is added above, and the panel shows `lines`.

        `open_line`: the text ends within a line, which is going to be continued: the panel is away until it is whole.
        """
        wanted = [] if open_line else list(lines)
        if not text and wanted == self._lines:
            return ""
        erase = f"\r\x1b[{len(self._lines)}A\x1b[J" if self._lines else ""
        self._lines = wanted
        return erase + text + "".join(map(self._form.format, wanted))
