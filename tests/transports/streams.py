"""What several transport tests need: a connected pair, and whole messages."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from rlm_wire.transports import ByteStream, transport_for


@asynccontextmanager
async def connected(
    url: str, *, client: ssl.SSLContext | None = None, server: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    transport, address = transport_for(url)
    async with transport.listen(address, ssl_context=server) as listener:
        transport, address = transport_for(listener.urls[0])
        async with transport.connect(address, ssl_context=client) as one:
            other = await listener.accept()
            async with trio.open_nursery() as closing:
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(one.handshake)
                        nursery.start_soon(other.handshake)
                    yield one, other
                finally:
                    closing.start_soon(one.aclose)
                    await other.aclose()


async def receive(stream: ByteStream, size: int) -> bytes:
    received = b""
    buffer = memoryview(bytearray(65536))
    while len(received) < size and (count := await stream.receive_into(buffer)):
        received += buffer[:count]
    return received


async def receive_all(stream: ByteStream) -> bytes:
    return await receive(stream, 1 << 40)
