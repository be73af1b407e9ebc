"""What every transport provides: the abstract byte stream, the listener, and the transport itself. No I/O here.

A transport moves bytes and decodes nothing. Someone who writes one needs this file, `adapter.py` if a Trio stream
exists already, and `rlm_wire.testing.check_transport()`, which checks every rule stated below.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, ClassVar, Protocol

from rlm_wire.errors import TransportError

if TYPE_CHECKING:
    import ssl

Buffer = bytes | bytearray | memoryview
"""What a stream sends; a memoryview must be contiguous and of format "B"."""


class ByteStream(abc.ABC):
    """A reliable, ordered stream of bytes in both directions, owned by one task tree of one Trio run.

    One task receives and one sends, at the same time if they like; a second receiver or sender gets
    `trio.BusyResourceError`. A broken stream raises `rlm_wire.errors.TransportError`, a closed one
    `trio.ClosedResourceError`, also in a task that was waiting when it was closed.
    """

    description: str
    """For people and error messages: where the other end is."""

    private: bool = False
    """True if nobody but the intended peer can be at the other end, so that no token is needed."""

    channel_binding: bytes = b""
    """On TLS, after `handshake()`: SHA-256 of the server certificate (DER), the same on both ends. Else empty."""

    skips_banner: ClassVar[bool] = False
    """True if other programs may have written to this stream first, as a login shell does; the wire then skips that."""

    async def handshake(self) -> None:  # noqa: B027 - most transports have nothing to agree on
        """Do what must be agreed before bytes can flow, such as TLS. Call it first, on both ends at the same time.

        Raises `TransportError`. Calling it again does nothing. Cancellation: the stream is unusable afterwards.
        """

    @abc.abstractmethod
    async def receive_into(self, buffer: memoryview) -> int:
        """Wait for bytes, put them into `buffer` (not empty) and return how many: at least 1, or 0 at the end.

        Cancellation: nothing is lost; the next call gets the bytes.
        """

    @abc.abstractmethod
    async def send(self, data: Sequence[Buffer]) -> None:
        """Send all of `data`, in order, and return once it is taken. Waits while the other side does not read.

        Cancellation: an unknown part was sent, so every later `send` raises `TransportError`.
        """

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        """Send what can be sent without waiting and return its size in bytes; 0 if nothing can.

        If a part of `data` was taken, the next thing sent must be the rest of it. A transport that cannot tell
        keeps this default, which takes nothing.
        """
        return 0

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close both directions. What was sent still reaches a peer that reads. Bounded by seconds; idempotent.

        Cancellation: the stream is closed at once, all the same.
        """

    def diagnose(self) -> str:
        """What is known about why the stream ended (exit status, last words), for an error message; may be empty."""
        return ""


class Listener(abc.ABC):
    """Waits for streams at the addresses `urls`, each of which `rlm_wire.connect` accepts from here."""

    urls: list[str]

    @abc.abstractmethod
    async def accept(self) -> ByteStream:
        """Wait for the next peer. The caller owns the stream, and calls its `handshake()` under a deadline of its own.

        Raises `trio.EndOfChannel` when there will be no more, `TransportError` when the listener is broken.
        Cancellation: no peer is lost.
        """


class Transport(Protocol):
    """What an entry point of the group `rlm_wire.transports` resolves to; the entry point's name is the URL scheme.

    `address` is the URL without the scheme, its colon and the two slashes, if there are any. A transport that has no
    use for an `ssl_context` refuses it with `TransportError`, because the caller believes to be encrypting.

    A transport whose attribute `reconnects` is True says that connecting to the same address again reaches the same
    server, so that sessions can be resumed. Without it they end with their connection.
    """

    def connect(
        self, address: str, *, ssl_context: ssl.SSLContext | None = None
    ) -> AbstractAsyncContextManager[ByteStream]:
        """Open a stream and close it on leaving. Raises `TransportError` if the address is wrong or does not answer."""
        ...

    def listen(
        self, address: str, *, ssl_context: ssl.SSLContext | None = None
    ) -> AbstractAsyncContextManager[Listener]:
        """Listen until left. Streams already accepted live on. Raises `TransportError` if the address cannot be had."""
        ...


def refuse_ssl_context(scheme: str, ssl_context: ssl.SSLContext | None) -> None:
    """For transports without TLS: a caller who passes a context believes to be encrypting."""
    if ssl_context is not None:
        raise TransportError(f"{scheme}: does not encrypt; use tls://HOST:PORT, or pass no ssl_context")
