"""Numbered frames that the peer has not acknowledged yet, in order: what a new link must resend. Spec §7."""

from __future__ import annotations

from collections import deque

from rlm_wire.errors import RemoteProtocolError
from rlm_wire.frames.codec import Buffer


class ReplayBuffer:
    """Keeps sent frames until they are acknowledged; `limit` bytes at most, then sending must wait."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.sent = 0
        self.acknowledged = 0
        self._frames: deque[tuple[int, tuple[Buffer, ...]]] = deque()

    def has_room(self, size: int) -> bool:
        """True if a frame of `size` bytes may be sent. An empty buffer takes any frame."""
        return self.size + size <= self.limit or not self._frames

    def keep(self, size: int, *pieces: Buffer) -> None:
        """Remember a numbered frame that goes out now."""
        self._frames.append((size, pieces))
        self.size += size
        self.sent += 1

    def acknowledge_untrusted(self, received: int) -> None:
        """The peer has `received` frames in all. RemoteProtocolError if it cannot have, or had more before."""
        self.check_untrusted(received)
        while self.acknowledged < received:
            size, _ = self._frames.popleft()
            self.size -= size
            self.acknowledged += 1

    def check_untrusted(self, received: int) -> None:
        """RemoteProtocolError unless the peer can have `received` frames in all."""
        if not self.acknowledged <= received <= self.sent:
            raise RemoteProtocolError(f"Ack of {received} frames: {self.sent} sent, {self.acknowledged} acknowledged")

    def unacknowledged(self) -> list[Buffer]:
        """The pieces of every frame to resend, in order."""
        return [piece for _, pieces in self._frames for piece in pieces]
