"""The ledger's way to the worker: what is new is sent as it is written, and all of it to a worker that has none yet."""

from __future__ import annotations

from typing import Final, Protocol

import trio

import rlm_wire
from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError, SessionLost
from rlm_wire.methods.ledger import LedgerChunk, LedgerSize, ReplicateLedger

CHUNK_SIZE: Final = 256 << 10
"""Bytes read and sent at once."""

Call = rlm_wire.Call[LedgerSize, LedgerSize, LedgerChunk]


class LedgerSource(Protocol):
    """A ledger that can be replicated: one JSON object per line, of which nothing ever changes but that more is added.

    `rlm_harness.Ledger` is one. For `rlm.history()` in cells to make sense of it, records are as in `ledger.records`.
    """

    @property
    def size(self) -> int:
        """Bytes of all complete records."""
        ...

    async def read(self, start: int, limit: int) -> bytes:
        """At least one and at most `limit` of the bytes from `start`, which is below `size`."""
        ...

    async def wait_beyond(self, size: int) -> None:
        """Wait until `self.size` is greater than `size`. Cancellation: harmless."""
        ...


class Replication:
    """Keeps a worker's replica of one agent's ledger up to date while `run` runs."""

    def __init__(self, peer: rlm_wire.Peer, agent: str, source: LedgerSource) -> None:
        self.source = source
        self.acknowledged = 0
        """Bytes that the worker has."""
        self.problem: CallError | None = None
        """Why the worker does not take more at the moment; its cells are told when they ask for their history."""
        self._peer = peer
        self._agent = agent

    async def run(self) -> None:
        """Replicate until cancelled, or until the worker is gone. After a refusal, tries again when there is more.

        Cancellation: waits, bounded, until the worker has heard of it.
        """
        while True:
            tried = self.source.size
            try:
                with one_error():
                    async with self._peer.open(ReplicateLedger(self._agent)) as call, trio.open_nursery() as nursery:
                        nursery.start_soon(self._send, call, (await anext(call)).size)
                        async for held in call:
                            self.acknowledged, self.problem = held.size, None
                            tried = max(tried, held.size)
                        nursery.cancel_scope.cancel()
                        await call.result()
            except SessionLost:
                return
            except CallError as error:
                self.problem = error
            await self.source.wait_beyond(tried)

    async def _send(self, call: Call, position: int) -> None:
        try:
            while True:
                await self.source.wait_beyond(position)
                data = await self.source.read(position, CHUNK_SIZE)
                await call.send(LedgerChunk(position, data))
                position += len(data)
        except (CallError, SessionLost, trio.BrokenResourceError):
            return  # the call has ended, which its receiving side reports
