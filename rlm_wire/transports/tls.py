"""`tls://HOST:PORT`: TLS over TCP, or over any other byte stream.

OpenSSL works in memory here and the stream below moves the records, several in one system call. `trio.SSLStream`
copies more and reaches less than half the speed. Contexts come from the caller or from `certificates.py`.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

import trio

from rlm_wire.errors import TransportError
from rlm_wire.transports.base import Buffer, ByteStream, Listener
from rlm_wire.transports.certificates import (
    digest_of,
    digest_shown_by,
    self_made_server_context,
    unverifying_client_context,
)
from rlm_wire.transports.exclusive import Exclusive
from rlm_wire.transports.tcp import listen_tcp, open_tcp, split_address

RECORD: Final = 16_384
"""Plaintext bytes that TLS puts into one record at the most."""

BATCH: Final = 16 * RECORD
"""Bytes encrypted, and bytes received, at a time: more costs memory per connection and gains nothing."""

CLOSING_TIMEOUT: Final = 2.0
"""Seconds to wait for a peer that does not read before closing without the TLS goodbye."""

_NOT_TLS: Final = {
    b"\x89RLM": "plain rlm-wire, without TLS: use tcp:// on this port, or a tls:// listener",
    b"HTTP": "a plain HTTP server",
    b"GET ": "a plain HTTP request",
    b"POST": "a plain HTTP request",
    b"PUT ": "a plain HTTP request",
    b"HEAD": "a plain HTTP request",
    b"OPTI": "a plain HTTP request",
    b"CONN": "a plain HTTP request",
    b"PRI ": "a plain HTTP/2 request",
    b"SSH-": "an SSH server or client",
}
_TLS_RECORD_TYPES: Final = {0x14, 0x15, 0x16, 0x17}


class TlsStream(ByteStream):
    """TLS over `below`, which it owns. Nothing can be sent or received before `handshake()`."""

    def __init__(
        self,
        below: ByteStream,
        context: ssl.SSLContext,
        *,
        server_host: str | None = None,
        server_digest: bytes = b"",
    ) -> None:
        """A client passes `server_host`, a server `server_digest`, the channel binding of its own certificate."""
        self._below = below
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_host is None, server_hostname=server_host
        )
        self._server_digest = server_digest
        self._records = memoryview(bytearray(BATCH))
        self._receiver = Exclusive("receiving from")
        self._sender = Exclusive("sending to")
        self._unsent: Buffer = b""  # records the stream below did not take at once
        self._encrypted_ahead = 0  # plaintext bytes that are in `_unsent`, but were not reported as taken
        self._ready = False
        self._first_bytes: bytes | None = None
        self.description = below.description

    async def handshake(self) -> None:
        if self._ready:
            return
        with self._receiver, self._sender:
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await self._flush()
                    if not await self._fill():
                        raise TransportError(f"{self.description}: closed during the TLS handshake") from None
                except ssl.SSLError as error:
                    self._below.send_nowait([self._outgoing.read()])  # the alert tells the peer why, if it fits
                    raise self._failed("TLS handshake", error) from error
            await self._flush()
        self.channel_binding = self._server_digest or digest_of(self._tls.getpeercert(binary_form=True))
        self._ready = True

    async def receive_into(self, buffer: memoryview) -> int:
        with self._receiver:
            self._check_ready()
            if self._incoming.pending or self._tls.pending():
                await trio.lowlevel.checkpoint()
                if size := self._decrypt(buffer):
                    return size
            while not self._incoming.eof:
                await self._fill()
                if size := self._decrypt(buffer):
                    return size
            return 0

    async def send(self, data: Sequence[Buffer]) -> None:
        with self._sender:
            self._check_ready()
            await self._flush()
            for batch in self._batches(data):
                for start in range(0, len(batch), RECORD):
                    self._encrypt(batch[start : start + RECORD])
                await self._flush()

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        with self._sender:
            self._check_ready()
            taken = 0
            if not self._flush_nowait():
                return 0
            for batch in self._batches(data):
                for start in range(0, len(batch), RECORD):
                    record = batch[start : start + RECORD]
                    if len(record) == 1:
                        return taken  # it could not be reported as taken in part, as the next lines must
                    self._encrypt(record)
                    taken += len(record)
                    if not self._flush_nowait():
                        # The record can no longer be taken back. Leaving one byte of it unreported makes the caller
                        # come back with the rest, which flushes the record.
                        self._encrypted_ahead = 1
                        return taken - 1
            return taken

    async def aclose(self) -> None:
        try:
            if self._ready and not self._sender.busy:
                with trio.move_on_after(CLOSING_TIMEOUT), self._sender:
                    await self._say_goodbye()
        finally:
            self._ready = False
            await self._below.aclose()

    async def _say_goodbye(self) -> None:
        with suppress(ssl.SSLError):  # it wants to read the peer's goodbye, for which there is no need to wait
            self._tls.unwrap()
        with suppress(TransportError, trio.ClosedResourceError):  # the peer may have gone before us
            await self._flush()

    def diagnose(self) -> str:
        return self._below.diagnose()

    def _batches(self, data: Sequence[Buffer]) -> Iterator[memoryview]:
        """`data` after what is encrypted already, in pieces for one flush each: small ones joined, large ones cut."""
        skip, self._encrypted_ahead = self._encrypted_ahead, 0
        small: list[memoryview] = []
        for piece in data:
            view = memoryview(piece)[skip:]
            skip = max(0, skip - len(piece))
            if len(view) < RECORD:
                small.append(view)
                if sum(map(len, small)) < RECORD:
                    continue
                view, small = memoryview(b"".join(small)), []
            elif small:
                yield memoryview(b"".join(small))
                small = []
            for start in range(0, len(view), BATCH):
                yield view[start : start + BATCH]
        if small:
            yield memoryview(b"".join(small))

    def _encrypt(self, record: memoryview) -> None:
        try:
            self._tls.write(record)
        except ssl.SSLError as error:
            raise self._failed("TLS", error) from error

    def _decrypt(self, buffer: memoryview) -> int:
        """Decrypt complete records until `buffer` is full; the size."""
        size = 0
        try:
            while size < len(buffer):
                more = cast(
                    "int", self._tls.read(len(buffer) - size, buffer[size:])
                )  # into a buffer: it returns the size
                if not more:
                    self._incoming.write_eof()
                    break
                size += more
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            if not size:
                raise self._failed("TLS", error) from error
        return size

    async def _fill(self) -> int:
        size = await self._below.receive_into(self._records)
        if size:
            if self._first_bytes is None:
                self._first_bytes = bytes(self._records[: min(size, 16)])
            self._incoming.write(self._records[:size])
        else:
            self._incoming.write_eof()
        return size

    async def _flush(self) -> None:
        unsent, self._unsent = self._unsent, b""
        await self._below.send([unsent, self._outgoing.read()])

    def _flush_nowait(self) -> bool:
        """Whether everything encrypted has been sent."""
        records = [self._unsent, self._outgoing.read()]
        size = len(records[0]) + len(records[1])
        taken = self._below.send_nowait(records) if size else 0
        if taken < size:
            self._unsent = memoryview(b"".join(records))[taken:]
            return False
        self._unsent = b""
        return True

    def _check_ready(self) -> None:
        if not self._ready:
            raise trio.ClosedResourceError(f"{self.description} is closed, or its handshake() has not been done")

    def _failed(self, doing: str, error: ssl.SSLError) -> TransportError:
        first = self._first_bytes or b""
        if first and first[0] not in _TLS_RECORD_TYPES:
            seen = _NOT_TLS.get(first[:4], f"something that is not TLS: it begins with {first!r}")
            return TransportError(f"{self.description}: expected TLS and got {seen}")
        if isinstance(error, ssl.SSLEOFError):
            return TransportError(f"{self.description}: the connection was cut without a TLS goodbye")
        _, alert, alerted = (error.reason or "").partition("ALERT_")
        reason = getattr(error, "verify_message", "") or (alerted or error.reason or str(error))
        reason = ("the peer refused: " if alert else "") + reason.replace("_", " ").lower()
        return TransportError(f"{self.description}: {doing} failed: {reason}")


class TlsListener(Listener):
    """Accepts TCP connections at once; each stream's `handshake()` is for whoever serves it."""

    def __init__(self, below: Listener, context: ssl.SSLContext) -> None:
        self._below = below
        self._context = context
        self._digest = digest_shown_by(context)
        self.urls = below.urls

    async def accept(self) -> ByteStream:
        return TlsStream(await self._below.accept(), self._context, server_digest=self._digest)


class TlsTransport:
    """Without an `ssl_context`, a client takes any certificate and a server makes its own: right with a token only,

    because then `channel_binding` lets the wire's handshake authenticate the certificate (see `certificates.py`).
    """

    reconnects = True

    @asynccontextmanager
    async def connect(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[ByteStream]:
        host, _ = split_address(address, scheme="tls")
        below = await open_tcp(address, scheme="tls")
        stream = TlsStream(below, ssl_context or unverifying_client_context(), server_host=host)
        try:
            yield stream
        finally:
            await stream.aclose()

    @asynccontextmanager
    async def listen(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
        context = ssl_context or self_made_server_context()
        async with listen_tcp(address, scheme="tls") as below:
            yield TlsListener(below, context)


transport = TlsTransport()
