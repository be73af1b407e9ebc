"""`rlm-worker attach`: carries bytes between stdin and stdout and the Unix socket of a worker, and reads none of them.

So whatever can run a command in the workspace (docker, kubectl, ssh) leads to a worker there that outlives the command.
"""

from __future__ import annotations

from typing import Final

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.errors import TransportError
from rlm_wire.transports import ByteStream, transport_for

_BUFFER_SIZE: Final = 256 * 1024


async def attach(path: str) -> None:
    """Carry bytes until either end has closed. Raises TransportError if nobody listens at `path`."""
    standard, address = transport_for("stdio:")
    socket, _ = transport_for("unix:")
    async with socket.connect(path) as worker, standard.listen(address) as listener:
        client = await listener.accept()
        with one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_carry, client, worker, nursery.cancel_scope)
                nursery.start_soon(_carry, worker, client, nursery.cancel_scope)
        await client.aclose()


async def _carry(source: ByteStream, target: ByteStream, both: trio.CancelScope) -> None:
    """Until `source` ends. A broken `target` is left to the other direction, which may still bring its last words."""
    buffer = memoryview(bytearray(_BUFFER_SIZE))
    try:
        while size := await source.receive_into(buffer):
            try:
                await target.send([buffer[:size]])
            except TransportError:
                return
    except TransportError:
        pass  # as good as its end
    both.cancel("one end has closed")
