"""`python -m bench [--quick] [GROUP...]`: measure, print one table, and after a full run write results.md."""

from __future__ import annotations

import argparse
import sys

from bench.lab import open_lab
from bench.measures import agents, bulk, calls, cancel, imports, kernels, links, numbering, sessions, turns, worker
from bench.report import Row, table, write_results

GROUPS = {
    "calls": calls.measure,
    "bulk": bulk.measure,
    "cancel": cancel.measure,
    "imports": imports.measure,
    "worker": worker.measure,
    "numbering": numbering.measure,
    "links": links.measure,
    "sessions": sessions.measure,
    "kernels": kernels.measure,
    "agents": agents.measure,
    "turns": turns.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Speed as ratios to raw baselines.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a first look in about 20 seconds")
    arguments = parser.parse_args()
    if unknown := set(arguments.groups) - set(GROUPS):
        parser.error(f"there is no group {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    with open_lab(arguments.quick) as lab:
        for name in arguments.groups or GROUPS:
            print(f"measuring {name} ...", file=sys.stderr)
            rows += GROUPS[name](lab)
    print(table(rows))
    if not arguments.quick and not arguments.groups:
        print(f"\nwritten to {write_results(rows).name}")


if __name__ == "__main__":
    main()
