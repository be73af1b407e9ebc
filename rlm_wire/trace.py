"""Recording every frame of a connection, to see what two sides really said. Off unless asked for.

A trace reads the bytes as they pass to and from the stream, so the protocol knows nothing of it and pays nothing when
it is off. What frames carry is left out unless asked for; scopes and what proves the token are never recorded.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import msgspec
import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.frames.limits import BANNER_LIMIT, HEADER_SIZE, PREFACE
from rlm_wire.frames.schema import Ack, Challenge, Frame, Goodbye, HandshakeFrame, Hello, Ping, Pong, Proof, Welcome
from rlm_wire.transports.base import Buffer, ByteStream

logger = logging.getLogger(__name__)

Record = dict[str, Any]
Recorder = Callable[[Record], object]

BUFFER_LIMIT: Final = 8 * 1024 * 1024
"""Bytes of records that may wait for a slow disk; what comes beyond them is counted and dropped."""

_SHOWN: Final = ("id", "method", "deadline", "code", "retryable", "received", "bytes", "last", "token")
_PAYLOAD: Final = ("params", "value", "result", "message", "reason", "data")
_HANDSHAKE: Final = (Hello, Challenge, Proof, Welcome)
_UNNUMBERED: Final = (*_HANDSHAKE, Goodbye, Ping, Pong, Ack)

if TYPE_CHECKING:
    _AnyFrame = Any
else:
    _AnyFrame = HandshakeFrame | Frame


class Trace(msgspec.Struct, frozen=True):
    """Where records go: appended to a file, one JSON object a line, or to a function that must be quick.

    A record has `t` (Unix time in seconds), `connection` (its number in this trace), `direction` (`sent` or
    `received`), `type` (`Preface`, or the frame's name in the specification), `size` (of the body, in bytes), for
    numbered frames `number`, and, as far as the frame has them, `id`, `method`, `deadline`, `code`, `retryable`,
    `received`, `bytes`, `last`, `token`; a Preface has `address`. `payload`: also what calls, items, answers and
    messages carry.
    """

    to: str | os.PathLike[str] | Recorder
    payload: bool = False


@asynccontextmanager
async def traced(trace: Trace | None) -> AsyncIterator[Callable[[ByteStream], ByteStream]]:
    """A function that wraps each stream so that its frames are recorded, while the body runs.

    Raises OSError if the file cannot be opened. Cancellation: records that wait are still written.
    """
    if trace is None:
        yield lambda stream: stream
        return
    numbers = itertools.count(1)
    if callable(trace.to):
        recorder = trace.to
        yield lambda stream: _TracedStream(stream, next(numbers), recorder, trace.payload)
        return
    file = await trio.to_thread.run_sync(_File, Path(trace.to))
    with one_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.run)
            try:
                yield lambda stream: _TracedStream(stream, next(numbers), file.record, trace.payload)
            finally:
                file.end()


class _File:
    """Writes records to a file, from a thread: a disk may stall."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lines: list[bytes] = []
        self._size = 0
        self._dropped = 0
        self._wake = trio.Event()
        self._ended = False

    def record(self, record: Record) -> None:
        line = msgspec.json.encode(record) + b"\n"
        if self._size + len(line) > BUFFER_LIMIT:
            self._dropped += 1
            return
        self._lines.append(line)
        self._size += len(line)
        self._wake.set()

    def end(self) -> None:
        """Let `run` write what is left and end."""
        self._ended = True
        self._wake.set()

    async def run(self) -> None:
        """Write what comes until `end`. Shielded: a trace is read when something went wrong."""
        with trio.CancelScope(shield=True):
            while not self._ended or self._lines:
                await self._wake.wait()
                self._wake = trio.Event()
                await trio.to_thread.run_sync(self._write, self._take())
            await trio.to_thread.run_sync(self._file.close)

    def _take(self) -> bytes:
        if self._dropped:
            self._lines.append(msgspec.json.encode({"t": time.time(), "dropped": self._dropped}) + b"\n")
        lines, self._lines, self._size, self._dropped = self._lines, [], 0, 0
        return b"".join(lines)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:  # a full disk must not end the session
            logger.warning("the trace lost %d bytes: %s", len(data), error)


class _TracedStream(ByteStream):
    """A stream whose frames are recorded as they pass."""

    def __init__(self, stream: ByteStream, number: int, recorder: Recorder, payload: bool) -> None:
        self.description = stream.description
        self._stream = stream
        self._sent = _Direction("sent", number, stream.description, recorder, payload)
        self._received = _Direction("received", number, stream.description, recorder, payload)

    @property
    def skips_banner(self) -> bool:  # type: ignore[override]
        return self._stream.skips_banner

    @property
    def private(self) -> bool:  # type: ignore[override]
        return self._stream.private

    @property
    def channel_binding(self) -> bytes:  # type: ignore[override]
        return self._stream.channel_binding

    async def handshake(self) -> None:
        await self._stream.handshake()

    async def receive_into(self, buffer: memoryview) -> int:
        count = await self._stream.receive_into(buffer)
        self._received.passed(buffer[:count])
        return count

    async def send(self, data: Sequence[Buffer]) -> None:
        await self._stream.send(data)
        for piece in data:
            self._sent.passed(piece)

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        count = left = self._stream.send_nowait(data)
        for piece in data:
            self._sent.passed(memoryview(piece)[:left])
            left -= min(left, len(piece))
        return count

    async def aclose(self) -> None:
        await self._stream.aclose()

    def diagnose(self) -> str:
        return self._stream.diagnose()


class _Direction:
    """The frames in one direction of a connection: bytes in, records out."""

    _decode: ClassVar = {b"[": msgspec.json.Decoder(_AnyFrame).decode}
    _decode_msgpack: ClassVar = msgspec.msgpack.Decoder(_AnyFrame).decode

    def __init__(
        self, direction: Literal["sent", "received"], connection: int, address: str, recorder: Recorder, payload: bool
    ) -> None:
        self._direction = direction
        self._connection = connection
        self._address = address
        self._recorder: Recorder | None = recorder
        self._payload = payload
        self._bytes = bytearray()
        self._begun = False
        self._number = 0

    def passed(self, data: Buffer) -> None:
        """Record the frames that are whole now. Never raises."""
        if self._recorder is None:
            return
        self._bytes += data
        try:
            if self._begun or self._find_preface():
                self._cut_frames()
        except Exception:  # a recorder's, say: a trace must not end the session that it watches
            logger.exception("the trace of %s ends here", self._address)
            self._recorder = None

    def _find_preface(self) -> bool:
        at = self._bytes.find(PREFACE)
        if at >= 0:
            del self._bytes[: at + len(PREFACE)]
            self._begun = True
            self._record("Preface", len(PREFACE), {"address": self._address})
        elif len(self._bytes) > BANNER_LIMIT + len(PREFACE):
            self._recorder = None  # this is not the protocol, and the handshake says so
        return self._begun

    def _cut_frames(self) -> None:
        while len(self._bytes) >= HEADER_SIZE:
            end = HEADER_SIZE + int.from_bytes(self._bytes[:HEADER_SIZE], "big")
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[HEADER_SIZE:end])
            del self._bytes[:end]
            self._record_frame(body)

    def _record_frame(self, body: bytes) -> None:
        try:
            frame = self._decode.get(body[:1], self._decode_msgpack)(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            self._record("undecodable", len(body), {})
            return
        more: Record = {}
        if not isinstance(frame, _UNNUMBERED):
            self._number += 1
            more["number"] = self._number
        for name in frame.__struct_fields__:
            value = getattr(frame, name)
            if name in _SHOWN and value is not None:
                more[name] = value
            elif self._payload and name in _PAYLOAD and not isinstance(frame, _HANDSHAKE):
                more[name] = _readable(value, body)
        self._record(type(frame).__name__, len(body), more)

    def _record(self, type_: str, size: int, more: Record) -> None:
        if self._recorder is not None:
            self._recorder(
                {
                    "t": round(time.time(), 6),
                    "connection": self._connection,
                    "direction": self._direction,
                    "type": type_,
                    "size": size,
                    **more,
                }
            )


def _readable(value: Any, body: bytes) -> Any:
    """What a frame carries, as JSON-like data; text that says so if it is none."""
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        plain = msgspec.json.decode(value) if body[:1] == b"[" else msgspec.msgpack.decode(value)
        return msgspec.json.decode(msgspec.json.encode(plain))
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        return f"not shown: {error}"
