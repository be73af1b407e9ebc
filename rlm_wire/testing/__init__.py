"""For tests: of a transport of one's own (`check_transport`), and of what reads and writes byte streams (the rest)."""

from __future__ import annotations

from rlm_wire.testing.conformance import check_transport
from rlm_wire.testing.faults import CutStream, StalledStream, TricklingStream

__all__ = ["CutStream", "StalledStream", "TricklingStream", "check_transport"]
