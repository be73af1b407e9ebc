"""Whole peers over a network of faults, on Trio's virtual clock, against a model: `simulate(seed)`.

`network` is the transport, `world` what the peers do and what must hold, `audit` what both ends must agree on when all
is quiet, `run` one seed from beginning to end, `corrupted` one of another kind. `python -m rlm_wire.testing.simulation`
runs many.
"""

from __future__ import annotations

from rlm_wire.testing.simulation.corrupted import simulate_corruption
from rlm_wire.testing.simulation.network import Fate, Network
from rlm_wire.testing.simulation.run import simulate

__all__ = ["Fate", "Network", "simulate", "simulate_corruption"]
