"""Numbers that come with requests on jobs and services: checked, with a message that says what is allowed."""

from __future__ import annotations

from rlm_wire.errors import CallError
from rlm_wire.methods.jobs import OutputRange
from rlm_worker.jobs.output import KeptOutput

WAIT_LIMIT = 300.0
"""Seconds that one call waits. Whoever wants to wait longer calls again."""

READ_LIMIT = 65_536
GRACE_LIMIT = 60.0


def waiting(value: float, name: str, limit: float = WAIT_LIMIT) -> float:
    """Seconds from 0 up; more than `limit` is `limit`."""
    if not value >= 0:
        raise CallError("invalid_argument", f"{name} must be a number of seconds from 0 to {limit:g}, not {value}")
    return min(value, limit)


def positive(value: float | None, name: str) -> float | None:
    if value is not None and not value > 0:
        raise CallError("invalid_argument", f"{name} must be positive, not {value}")
    return value


async def read_output(output: KeptOutput, cursor: int, max_bytes: int, wait: float) -> OutputRange:
    """What a request to read asks for. Raises CallError("invalid_argument"). Cancellation: nothing happens."""
    if cursor < 0:
        raise CallError("invalid_argument", f"cursor must be a byte position from 0 up, not {cursor}")
    if not 1 <= max_bytes <= READ_LIMIT:
        raise CallError("invalid_argument", f"max_bytes must be from 1 to {READ_LIMIT}, not {max_bytes}")
    return await output.read(cursor, max_bytes, waiting(wait, "wait"))
