"""The requests of the benchmark, the same for every subject: baselines encode these Structs too."""

from __future__ import annotations

from typing import Never

import msgspec

import rlm_wire

SMALL = b"x" * 64
IN_FLIGHT = 64
LARGE = b"x" * (15 * 1024 * 1024)
ITEM = 64 * 1024


class Echoed(msgspec.Struct):
    data: bytes


class Echo(rlm_wire.Request[Echoed], tag="bench.echo"):
    """Gives `data` back, at once."""

    data: bytes


class Stream(rlm_wire.StreamRequest[int, Echoed, Never], tag="bench.stream"):
    """Sends `count` items of ITEM bytes."""

    count: int


class Hang(rlm_wire.StreamRequest[int, Never, Never], tag="bench.hang"):
    """Waits until it is cancelled; the result is the monotonic clock, in nanoseconds, at that moment."""


class ServerPid(rlm_wire.Request[int], tag="bench.pid"):
    """The server's process."""
