"""Where a shared token comes from: a file, an open descriptor, or the environment. Never a command line."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

VARIABLE = "RLM_TOKEN"


def take_token(path: str | None = None, descriptor: int | None = None) -> bytes | None:
    """The token in the file `path`, else from `descriptor` (read to its end, and closed), else of `RLM_TOKEN`, or None.

    White space around it does not count. The variable is gone afterwards in any case, for children and for readers of
    /proc. Raises ValueError, which says what is wrong and never quotes the token.
    """
    inherited = _take_variable()
    source = path if path is not None else VARIABLE if descriptor is None else f"descriptor {descriptor}"
    try:
        if path is not None:
            token = Path(path).read_bytes()
        elif descriptor is not None:
            with open(descriptor, "rb") as file:
                token = file.read()
        elif inherited is None:
            return None
        else:
            token = inherited
    except OSError as error:
        raise ValueError(f"the token cannot be read from {source}: {error.strerror}") from None
    if not token.strip():
        raise ValueError(f"{source} holds no token")
    return token.strip()


def _take_variable() -> bytes | None:
    value = os.environb.get(VARIABLE.encode())
    if value is None:
        return None
    # Removing a variable only unlinks it: its text stays where /proc/PID/environ shows it to processes of this user.
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(VARIABLE.encode())
    if address:
        ctypes.memset(address, 0, len(value))
    del os.environ[VARIABLE]
    return value
