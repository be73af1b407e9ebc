"""A listener that gets its streams from somewhere in the same program: what transports in memory listen with."""

from __future__ import annotations

import math

import trio

from rlm_wire.transports import ByteStream, Listener


class ArrivalListener(Listener):
    """`hand_over` makes a stream wait to be accepted."""

    def __init__(self, url: str) -> None:
        self.urls = [url]
        self._hand_over, self._incoming = trio.open_memory_channel[ByteStream](math.inf)

    def hand_over(self, stream: ByteStream) -> None:
        self._hand_over.send_nowait(stream)

    async def accept(self) -> ByteStream:
        return await self._incoming.receive()
