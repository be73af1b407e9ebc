"""A child process that takes its standard streams as `stdio:` does and joins them to the Unix socket named in argv.

So a test in one process holds both a client's and a server's end of a real stdio connection.
"""

from __future__ import annotations

import sys

import trio

from rlm_wire.errors import TransportError
from rlm_wire.transports import ByteStream, transport_for


async def copy(source: ByteStream, target: ByteStream, scope: trio.CancelScope) -> None:
    buffer = memoryview(bytearray(65536))
    try:
        while size := await source.receive_into(buffer):
            try:
                await target.send([buffer[:size]])
            except TransportError:
                return  # the target has closed; what it sent before is still being copied the other way
    except TransportError:
        pass
    scope.cancel()  # the source has closed both directions, so nobody is left to copy for


async def main(path: str) -> None:
    standard, address = transport_for("stdio:")
    socket, _ = transport_for("unix:")
    async with standard.listen(address) as listener, socket.connect(path) as far:
        near = await listener.accept()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy, near, far, nursery.cancel_scope)
            nursery.start_soon(copy, far, near, nursery.cancel_scope)
        await near.aclose()


trio.run(main, sys.argv[1])
