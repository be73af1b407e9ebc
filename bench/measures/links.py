"""Long fat links: what a call costs in round trips, and how much of the link a stream gets. Real sockets, real worker.

Needs root, for the namespaces of `bench.tunnel`; `tests/simulation/test_long_links.py` shows the same in virtual time.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from bench import tunnel
from bench.lab import Lab, percentile, ratio
from bench.report import Row
from bench.subjects.far import STREAM

RATE = 125_000_000  # 1 Gbit/s: here the sockets' own buffers are the limit, so nothing queues on the way
ROUND_TRIPS = (0.1, 0.2)


def measure(lab: Lab) -> Iterator[Row]:
    if not tunnel.possible():
        print("long links: skipped, they need root and /dev/net/tun", file=sys.stderr)
        return
    for round_trip in ROUND_TRIPS[-1:] if lab.quick else ROUND_TRIPS:
        yield from _rows(round_trip, _seconds(round_trip))


def _rows(round_trip: float, seconds: dict[str, list[float]]) -> Iterator[Row]:
    where = f"{round_trip * 1e3:.0f} ms"

    def row(what: str, value: float, at_most: float) -> Row:
        return Row(what, where, value / round_trip, "round trips", at_most=at_most)

    yield row("TCP, token and a first call", median(seconds["first call"]), 4.5)
    yield row("call", median(seconds["call"]), 1.5)
    yield row("64 calls at once", median(seconds["burst"]), 1.5)
    yield row('bash("true") at a worker', median(seconds["bash"]), 1.5)
    yield row('ipython("1") at a worker', median(seconds["ipython"]), 1.5)
    ours, raw = ([STREAM / 1e6 / each for each in seconds[name]] for name in ("stream", "raw stream"))
    yield Row("64 MiB stream", where, median(ours), "MB/s", ratio(ours, raw), "a plain socket", at_least=0.8)
    yield row("call beside the stream, median", median(seconds["call beside"]), 2)
    yield row("call beside the stream, p99", percentile(seconds["call beside"], 0.99), 2)


def _seconds(round_trip: float) -> dict[str, list[float]]:
    """What `bench.subjects.far` measured."""
    token = secrets.token_hex()
    server = [sys.executable, "-m", "bench.subjects", "serve", "far"]
    worker = [sys.executable, "-m", "rlm_worker", "serve", "--tcp", f"{tunnel.ADDRESSES[1]}:0"]
    with (
        _process([sys.executable, "-m", "bench.tunnel", str(round_trip), str(RATE)]) as line,
        _process(_within(json.loads(line)[1], server), token) as url,
        _process(_within(json.loads(line)[1], worker), token) as listening,
    ):
        client = [sys.executable, "-m", "bench.subjects.far", url, listening.removeprefix("listening on ")]
        answer = subprocess.run(
            _within(json.loads(line)[0], client), input=f"{token}\n", stdout=subprocess.PIPE, text=True, check=True
        )
    seconds: dict[str, list[float]] = json.loads(answer.stdout)
    return seconds


def _within(namespace: str, command: Sequence[str]) -> list[str]:
    return ["nsenter", f"--net={namespace}", *command]


@contextmanager
def _process(command: Sequence[str], token: str = "") -> Iterator[str]:
    """Run `command` while the block does; its first line of output. It gets the token both ways that there are."""
    environment = {**os.environ, "RLM_TOKEN": token}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if token:
            process.stdin.write(f"{token}\n")
            process.stdin.flush()
        yield process.stdout.readline().strip()
        process.terminate()
