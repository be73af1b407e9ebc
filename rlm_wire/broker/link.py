"""What the broker asks of a byte stream; `rlm_wire.transports.base.ByteStream` is where it is documented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Link(Protocol):
    """A byte stream, as the broker sees it."""

    @property
    def description(self) -> str: ...

    @property
    def private(self) -> bool: ...

    @property
    def channel_binding(self) -> bytes: ...

    async def receive_into(self, buffer: memoryview) -> int: ...

    async def send(self, data: Sequence[Buffer]) -> None: ...

    def send_nowait(self, data: Sequence[Buffer]) -> int: ...

    def diagnose(self) -> str: ...
