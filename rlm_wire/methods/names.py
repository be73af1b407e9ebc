"""What an agent or a service may be called. Pure."""

from __future__ import annotations

import re
from typing import Final

from rlm_wire.errors import CallError

NAME_LIMIT: Final = 200
"""Characters of a name."""

_CONTROL: Final = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")


def check_name(name: str, whose: str) -> None:
    """Raises CallError("invalid_argument") that says what is allowed: names stand in lists, a line each."""
    if not name.strip() or len(name) > NAME_LIMIT or _CONTROL.search(name):
        allowed = f"1 to {NAME_LIMIT} characters, not all of them blank, and no line breaks or other control characters"
        raise CallError("invalid_argument", f"{whose} name has {allowed}")
