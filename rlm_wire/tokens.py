"""Where a shared token comes from: a file, an open descriptor, or the environment. Never a command line."""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

VARIABLE = "RLM_TOKEN"


def take_token(path: str | None = None, descriptor: int | None = None) -> bytes | None:
    """The token in the file `path`, else from `descriptor` (read to its end, and closed), else of `RLM_TOKEN`, or None.

    White space around it does not count. The variable is gone afterwards in any case, for children and for readers of
    /proc. Raises ValueError, which says what is wrong and never quotes the token.
    """
    inherited = take_variable(VARIABLE)
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
    except (OSError, ValueError) as error:  # ValueError: a descriptor below 0, or a path with a NUL character
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(f"the token cannot be read from {source}: {reason}") from None
    if not token.strip():
        raise ValueError(f"{source} holds no token")
    return token.strip()


def exposure(path: str) -> str:
    """A warning, in one line, if others than its owner may read the secret in the file `path`; else empty."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):  # whoever reads it will tell
        return ""
    # What is no regular file, /dev/stdin for instance, is open to whoever has it open.
    if not stat.S_ISREG(mode) or not mode & (stat.S_IRGRP | stat.S_IROTH):
        return ""
    return f"warning: others can read the secret in {path}; chmod 600 it"


def take_variable(name: str) -> bytes | None:
    """The environment variable's value, which is then gone: from children, and from what /proc shows of this process.

    Removing a variable only unlinks it; its text stays in the block that /proc/PID/environ shows to every process of
    this user. So the text itself is overwritten.
    """
    value = os.environb.get(name.encode())
    if value is None:
        return None
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(name.encode())
    if address:
        ctypes.memset(address, 0, len(value))
    del os.environ[name]
    return value
