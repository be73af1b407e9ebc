"""What a session's handshake told."""

from __future__ import annotations

import msgspec

from rlm_wire.frames.limits import Limits


class PeerInfo(msgspec.Struct, frozen=True):
    """What the handshake told of the other side, and what was agreed. `limits` are those in force."""

    software: str
    version: int
    codec: str
    features: list[str]
    limits: Limits
    session: str
