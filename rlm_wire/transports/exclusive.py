"""A guard that lets one task at a time use one direction of a stream."""

from __future__ import annotations

import trio


class Exclusive:
    """`with exclusive:` raises `trio.BusyResourceError` while another task is inside; it never waits."""

    __slots__ = ("_use", "busy")

    def __init__(self, use: str) -> None:
        self._use = use
        self.busy = False

    def __enter__(self) -> None:
        if self.busy:
            raise trio.BusyResourceError(f"another task is already {self._use} this stream")
        self.busy = True

    def __exit__(self, *_: object) -> None:
        self.busy = False
