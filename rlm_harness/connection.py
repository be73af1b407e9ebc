"""Telling a person when the connection to the worker is away, and when it is back. Nothing else waits for that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

import rlm_wire
from rlm_harness.events import Emit, Reconnected, Reconnecting
from rlm_wire.broker.groups import one_error


@asynccontextmanager
async def connection_told(peer: rlm_wire.Peer, emit: Emit) -> AsyncIterator[None]:
    """While the body runs, tell `emit` what becomes of the connection. What `emit` raises cancels the body."""
    with one_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell, peer, emit)
            yield
            nursery.cancel_scope.cancel()


async def _tell(peer: rlm_wire.Peer, emit: Emit) -> None:
    while await peer.wait_state("reconnecting", "closed") == "reconnecting":
        await emit(Reconnecting(peer.interruption))
        if await peer.wait_state("connected", "closed") == "connected":
            await emit(Reconnected())
