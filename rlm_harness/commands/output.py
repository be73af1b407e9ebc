"""What commands say: text for standard output, one line for a mistake."""

from __future__ import annotations

import os
import sys


def print_text(text: str) -> None:
    """Write `text` at once. Raises BrokenPipeError if nobody reads any more, and leaves nothing for the end."""
    rest = memoryview(text.encode("utf-8", "replace"))
    while rest:
        rest = rest[os.write(sys.stdout.fileno(), rest) :]


def complain(message: str) -> int:
    """One line for a mistake of the user's; gives the exit code for it."""
    print(f"rlm-harness: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return 2
