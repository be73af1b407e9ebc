"""The ledger's replica: harness → worker as it grows (`ledger.replicate`), cell → worker as it is read (`ledger.read`).

The ledger is one JSON object per line. Positions and sizes are bytes, so that a record may be of any size.
"""

from __future__ import annotations

import msgspec

from rlm_wire.methods.base import Request, StreamRequest


class LedgerChunk(msgspec.Struct, frozen=True):
    """`data` stands at `start`; it may begin and end inside a record. At most 1 MiB."""

    start: int
    data: bytes


class LedgerSize(msgspec.Struct, frozen=True):
    """How much of the ledger the worker has, from its beginning."""

    size: int


class ReplicateLedger(StreamRequest[LedgerSize, LedgerSize, LedgerChunk], tag="ledger.replicate"):
    """Keep the worker's replica of the agent's ledger, for as long as the call is open.

    The first item from the worker says what it has: 0 if it is new. Chunks continue from there, in order, and each is
    answered with the new size. A chunk beyond the end fails the call with `failed_precondition`, a full disk with
    `resource_exhausted`; the replica keeps what it had, and the call can be made again.
    """

    agent: str


class ReadLedger(Request[LedgerChunk], tag="ledger.read"):
    """Read the replica from `start`, at most 1 MiB of it; empty at its end.

    If there is less than `size` of it yet (None: whatever there is), this waits for more. Fails with `unimplemented` if
    the harness sends no ledger, `unavailable` if it should but does not, `resource_exhausted` if there is no room.
    """

    start: int
    size: int | None = None
