"""What is known of a session: from its handshake, and at its loss."""

from __future__ import annotations

import msgspec

from rlm_wire.errors import Fate
from rlm_wire.frames.limits import Limits


class PeerInfo(msgspec.Struct, frozen=True):
    """What the handshake told of the other side, and what was agreed. `limits` are those in force."""

    software: str
    version: int
    codec: str
    features: list[str]
    limits: Limits
    session: str


class LostCall(msgspec.Struct, frozen=True):
    """A call that was open when its session was lost; `fate` as of `SessionLost`."""

    method: str
    fate: Fate


class Loss(msgspec.Struct, frozen=True):
    """Why a session was lost, for people, and what was open then, in the order in which it was begun."""

    reason: str
    calls: list[LostCall]
