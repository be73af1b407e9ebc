"""Every number of the protocol, each with its reason. Spec §8.

Both sides state their limits in the handshake and the lower of the two wins. A limit is checked before anything is
allocated for what it limits.
"""

from __future__ import annotations

from typing import Final

import msgspec

PROTOCOL_VERSION: Final = 1

PREFACE: Final = b"\x89RLMW\r\n\x1a"
"""As in PNG's signature: a byte with the high bit, the name, and line ends, so that text mangling shows (spec §2)."""

HEADER_SIZE: Final = 4
"""Bytes of the big-endian length before each body."""

BANNER_LIMIT: Final = 64 * 1024
"""Bytes before the preface that a stdio client skips: login banners and profile noise are a few KiB."""

HANDSHAKE_FRAME_LIMIT: Final = 64 * 1024
"""Largest body before authentication: a Hello is under 1 KiB; a stranger must not make us hold more."""

FRAME_LIMIT: Final = 256 * 1024
"""Largest body of one frame: what one wake-up reads, and as much as one sender may hold the line."""

MESSAGE_LIMIT: Final = 16 * 1024 * 1024
"""Largest message (a frame before it is sliced): as gRPC's customary ceiling; larger things are streams."""

SLICE_SIZE: Final = 64 * 1024
"""Encoded bytes in a Part: about 1 ms on a 500 Mbit/s link, so that small frames between slices stay quick."""

UNSLICED_LIMIT: Final = SLICE_SIZE + 1024
"""A body up to this size travels whole: a value of exactly 64 KiB and its envelope fit."""

LARGE_SIZE: Final = 16 * 1024
"""A body above this queues in the bulk lane, where it cannot delay small frames of other calls."""

NESTING_LIMIT: Final = 64
"""Containers inside containers, the body's own array included. Decoders recurse; ours must never meet a bomb."""

CALLS_LIMIT: Final = 16_384
"""Calls in flight in one direction: parked calls are cheap, but not free."""

REPLAY_LIMIT: Final = 32 * 1024 * 1024
"""Bytes kept until acknowledged: two of the largest messages, so that one never waits for its own Ack."""

REASSEMBLY_LIMIT: Final = 64 * 1024 * 1024
"""Bytes of Parts on the way or not consumed: four of the largest messages side by side."""

ITEM_WINDOW: Final = 1024 * 1024
"""First receive window of a call's items: fills 100 Mbit/s at 80 ms."""

ITEM_WINDOW_LIMIT: Final = 16 * 1024 * 1024
"""Largest receive window of one call: fills 1 Gbit/s at 130 ms."""

CREDIT_BYTES: Final = 2 * 1024 * 1024
"""Credit is due after so many consumed bytes, or half of the window if that is less: of a window that had to grow,
nearly all is to be under way, not between half and all."""

WINDOW_GROWTH_LIMIT: Final = 64 * 1024 * 1024
"""Bytes by which all item windows of one connection together may have grown."""

ACK_FRAMES: Final = 1024
ACK_BYTES: Final = 2 * 1024 * 1024
"""An Ack is due after so many frames or bytes (or a whole sliced message): rare enough to cost nothing."""

LEASE: Final = 60
"""Seconds that a session is kept without a connection: a wireless link, a restarted proxy or `docker exec` is back
within them, and what a lost client left running does not run on for long."""

QUEUED_FRAMES_LIMIT: Final = 131_072
"""Small frames that may wait for a peer that sends and does not read: eight for each call it may have open, and more
than this side can queue of its own accord."""

MESSAGE_TEXT_LIMIT: Final = 8 * 1024
"""Characters of the human text in Fail, Goodbye and Cancel: an error message is not a data channel. However they are
escaped (7 bytes at worst), a frame with them fits into the smallest frame limit and needs no slicing."""

HIGHEST_ID: Final = 2**53 - 1
"""Ids stay exact in languages whose only number is a double."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one side accepts, in bytes (calls: in number; lease: in seconds, 0 if a session ends with its connection).

    A map by name in the handshake; absent means the default.
    """

    frame: int = FRAME_LIMIT
    message: int = MESSAGE_LIMIT
    calls: int = CALLS_LIMIT
    replay: int = REPLAY_LIMIT
    reassembly: int = REASSEMBLY_LIMIT
    item_window: int = ITEM_WINDOW
    lease: int = LEASE

    def lowest(self, other: Limits) -> Limits:
        """The limits in force between two sides: each the lower of both."""
        return Limits(**{name: min(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__})

    def problem(self) -> str | None:
        """Why a peer's limits cannot be worked with, or None. Spec §8.2."""
        if self.frame < UNSLICED_LIMIT:
            return f"limit frame={self.frame} is below {UNSLICED_LIMIT}"
        if self.message < self.frame:
            return f"limit message={self.message} is below frame={self.frame}"
        if min(self.replay, self.reassembly) < self.message:
            return f"limits replay and reassembly must cover one message of {self.message}"
        if self.calls < 1 or self.item_window < 1:
            return "limits calls and item_window must be positive"
        if self.lease < 0:
            return "limit lease must not be negative"
        return None
