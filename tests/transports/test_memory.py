"""What is particular to streams in memory."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from transports.streams import connected, receive_all

from rlm_wire.errors import TransportError
from rlm_wire.transports import transport_for
from rlm_wire.transports.memory import CAPACITY


async def test_a_name_is_taken_while_listened_on_and_free_afterwards() -> None:
    transport, address = transport_for("memory:name")
    for _ in range(2):
        async with transport.listen(address):
            with pytest.raises(TransportError, match="memory:name is taken"):
                async with transport.listen(address):
                    pass
    with pytest.raises(TransportError, match="nobody listens on memory:name"):
        async with transport.connect(address):
            pass


async def test_a_peer_that_is_never_accepted_sees_the_end_when_the_listener_goes() -> None:
    transport, address = transport_for("memory:name")
    async with transport.listen(address):
        connecting = transport.connect(address)
        stream = await connecting.__aenter__()
    assert await receive_all(stream) == b""
    await connecting.__aexit__(None, None, None)


async def test_exactly_the_capacity_fits_without_a_reader(autojump_clock: trio.testing.MockClock) -> None:
    async with connected("memory:name") as (one, other):
        assert one.send_nowait([bytes(CAPACITY), b"more"]) == CAPACITY
        with trio.move_on_after(1) as scope:
            await one.send([b"more"])
        assert scope.cancelled_caught
        await one.aclose()
        assert await receive_all(other) == bytes(CAPACITY)
