"""`python -m rlm_wire.testing.simulation --seeds 100`: run many; the first that fails says how to run it again."""

from __future__ import annotations

import argparse
import sys
import traceback

from rlm_wire.testing.simulation.corrupted import simulate_corruption
from rlm_wire.testing.simulation.run import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rlm_wire.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    options = parser.parse_args()
    cut = lost = 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            cut += simulate(seed)
            lost += simulate_corruption(seed)
        except Exception:  # noqa: BLE001 - whatever it is, it is this seed's
            traceback.print_exc()
            again = f"{sys.executable} -m rlm_wire.testing.simulation --first {seed} --seeds 1"
            sys.stderr.write(f"seed {seed} failed; run it again with\n  {again}\n")
            return 1
    seen = f"{cut} connections cut, {lost} calls lost to corruption"
    sys.stdout.write(f"{options.seeds} seeds from {options.first} on, {seen}: all sound\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
