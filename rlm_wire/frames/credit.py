"""Windows: how much one side may send before the other has consumed. Spec §6.3 and §5.3.

A sender may send an item while its window is positive, and the window may go below zero by that one item, so that an
item larger than the window cannot wait for ever. Credit returns when the application consumes, never on arrival, and
in steps of half a window (of CREDIT_BYTES, if it is large), so that a reader of small items does not answer each with a
Credit.
"""

from __future__ import annotations

from rlm_wire.errors import RemoteProtocolError
from rlm_wire.frames.limits import CREDIT_BYTES, HIGHEST_ID, ITEM_WINDOW_LIMIT


class SendWindow:
    """Bytes this side may still send in one direction of one call (or as Parts)."""

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = size

    def spend(self, size: int) -> None:
        self.left -= size

    def grant_untrusted(self, amount: int) -> None:
        """The peer granted `amount` bytes more. RemoteProtocolError if that is absurd."""
        self.left += amount
        if self.left > HIGHEST_ID:
            raise RemoteProtocolError("credit beyond any window")


class ReceiveWindow:
    """Bytes the peer may still send; grows while a reader that keeps up has to wait for more.

    A reader that had nothing left to consume at some time while half of the window was used up is waiting for the link,
    not the link for the reader: the window may then be what limits a long fat link, and doubles, up to
    `ITEM_WINDOW_LIMIT`. At some time, not at that moment: one read of a fast link brings many small items.
    """

    __slots__ = ("_consumed", "_drained", "_waiting", "left", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.left = size
        self._waiting = 0  # received, not consumed
        self._consumed = 0  # consumed, not granted again
        self._drained = False  # all that had come was consumed, since the last grant

    def receive_untrusted(self, size: int, call_id: int) -> None:
        """An item of `size` bytes arrived. RemoteProtocolError if the window was used up before."""
        if self.left <= 0:
            raise RemoteProtocolError(f"call {call_id}: item beyond the window", code="resource_exhausted")
        self.left -= size
        self._waiting += size

    def consume(self, size: int, growth_left: int) -> tuple[int, int]:
        """The application took `size` bytes. Returns (credit to grant now or 0, how much of it is growth)."""
        self._waiting -= size
        self._consumed += size
        self._drained = self._drained or not self._waiting
        if self._consumed < min(self.size / 2, CREDIT_BYTES) and self.left > 0:
            return 0, 0
        growth = 0
        if self._drained:
            growth = max(0, min(self.size, ITEM_WINDOW_LIMIT - self.size, growth_left))
        amount = self._consumed + growth
        self.size += growth
        self.left += amount
        self._consumed = 0
        self._drained = False
        return amount, growth
