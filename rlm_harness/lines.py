"""Lines of a byte stream, none longer than a limit. A longer one is skipped, and what comes behind it is not harmed."""

from __future__ import annotations

from typing import Final

import trio

from rlm_wire.transports.base import ByteStream

LINE_LIMIT: Final = 32 * 1024 * 1024
"""Bytes of one message: a prompt with several pictures is far smaller, and so is the answer of a tool."""

_CHUNK: Final = 256 * 1024


class LineTooLong(Exception):
    """A line had more bytes than the limit; the next call gives what follows it."""


class Lines:
    """Reads `stream` line by line."""

    def __init__(self, stream: ByteStream, limit: int = LINE_LIMIT) -> None:
        self._stream = stream
        self._limit = limit
        self._kept = bytearray()
        self._searched = 0
        self._skipping = False
        self._chunk = memoryview(bytearray(_CHUNK))

    async def next(self) -> bytes | None:
        """The next line without its end, None at the end of the stream; an unfinished last line does not count.

        Raises LineTooLong, as soon as a line is, and what the stream raises. Cancellation: nothing is lost. Others get
        their turn before each line: a peer that says much would else keep them from it.
        """
        await trio.lowlevel.checkpoint()
        if self._skipping:
            await self._skip()
        while (end := self._kept.find(b"\n", self._searched)) < 0:
            self._searched = len(self._kept)
            if self._searched > self._limit:
                self._skipping = True
                raise LineTooLong
            if not await self._receive():
                return None
        line = bytes(self._kept[:end])
        del self._kept[: end + 1]
        self._searched = 0
        if len(line) > self._limit:
            raise LineTooLong
        return line

    async def _skip(self) -> None:
        """Past the end of this line."""
        while (end := self._kept.find(b"\n")) < 0:
            self._kept.clear()
            if not await self._receive():
                return
        del self._kept[: end + 1]
        self._searched = 0
        self._skipping = False

    async def _receive(self) -> int:
        size = await self._stream.receive_into(self._chunk)
        self._kept += self._chunk[:size]
        return size
