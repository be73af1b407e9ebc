"""`python -m fuzz`: run the targets for a bounded number of inputs, then check what each has reached.

A finding is written to tests/fuzz_findings/TARGET/, where the tests replay it from then on, and ends the run.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz.corpus import FINDINGS, LONGEST_INPUT, ROOT, write_corpus
from fuzz.targets import NAMES, target

_SLOW = 60
"""Seconds for one input: far beyond any that is fine, on the slowest machine."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz the protocol core.")
    parser.add_argument("--target", choices=NAMES, action="append", help="only this one; may be repeated")
    parser.add_argument("--runs", type=int, default=5_000, help="inputs for each target (default: 5000)")
    parser.add_argument("--seed", type=int, default=1, help="of the fuzzer; 0 is another one each time (default: 1)")
    parser.add_argument("--corpus", type=Path, help="keep what is found interesting in DIRECTORY/TARGET")
    parser.add_argument("--replay", type=Path, help="run one input through the target, without the fuzzer")
    arguments = parser.parse_args()
    names: list[str] = arguments.target or list(NAMES)
    if arguments.replay:
        if len(names) != 1:
            parser.error("--replay needs one --target")
        target(names[0]).run(arguments.replay.read_bytes())
        print(f"{names[0]} takes {arguments.replay}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        corpus = arguments.corpus or Path(scratch)
        passed = [_fuzz(name, corpus / name, arguments.runs, arguments.seed) for name in names]
    sys.exit(not all(passed))


def _fuzz(name: str, corpus: Path, runs: int, seed: int) -> bool:
    """True if no input broke a promise, and the target reached what it should."""
    print(f"{name}: {runs} inputs ...", flush=True)
    write_corpus(name, corpus)
    found = FINDINGS / name
    found.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "fuzz.engine", name, str(corpus)),
        *(f"-runs={runs}", f"-seed={seed}", f"-artifact_prefix={found}/", f"-dict={Path(__file__).parent}/wire.dict"),
        *(f"-max_len={LONGEST_INPUT}", f"-timeout={_SLOW}", f"-report_slow_units={_SLOW}", "-rss_limit_mb=2048"),
    ]
    fuzzer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    if fuzzer.returncode:
        print(_without_progress(fuzzer.stderr + fuzzer.stdout), file=sys.stderr)
        for path in re.findall(r"Test unit written to (\S+)", fuzzer.stderr):
            print(f"replay with: {sys.executable} -m fuzz --target {name} --replay {path}", file=sys.stderr)
        return False
    if done := re.search(r"Done (\d+) runs in (\d+) second", fuzzer.stderr):
        print(f"  {int(done[1]) // max(int(done[2]), 1)} inputs a second, {len(list(corpus.iterdir()))} in the corpus")
    reach = [sys.executable, "-m", "fuzz.reach", name, str(corpus)]
    return subprocess.run(reach, cwd=ROOT, check=False).returncode == 0


def _without_progress(output: str) -> str:
    """The fuzzer's output without its lines about itself."""
    lines = (line for line in output.splitlines() if not re.match(r"#\d+\s|INFO: |\"|###", line))
    return "\n".join(lines)[-8_000:]


if __name__ == "__main__":
    main()
