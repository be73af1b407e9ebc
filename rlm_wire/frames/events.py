"""What a Connection tells its owner. Message frames (Call, Close, Reply, Fail, Cancel, Pong) are their own events.

Values inside events are still encoded and view into the receive buffer: decode them before receiving more.
"""

from __future__ import annotations

import msgspec

from rlm_wire.errors import WireError
from rlm_wire.frames.schema import Call, Cancel, Close, Fail, Pong, Reply, Value


class ItemReceived(msgspec.Struct, frozen=True):
    """An item; report its `size` to `Connection.consumed` when the application has taken it. Spec §6.3."""

    id: int
    value: Value
    size: int
    sliced: bool = False


class CreditReceived(msgspec.Struct, frozen=True):
    """The peer has consumed items of call `id`: more may be sent. Spec §6.3."""

    id: int


class Ended(msgspec.Struct, frozen=True):
    """Nothing more will come or may be sent. `error` is None after an orderly Goodbye. Spec §4.4."""

    error: WireError | None


Event = Call | ItemReceived | Close | Reply | Fail | Cancel | CreditReceived | Pong | Ended
