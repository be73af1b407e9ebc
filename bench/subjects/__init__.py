"""What is measured. Each module has `serve` and `drive` for the two ends of one way to make a call.

A client is an object whose methods are measurements: coroutines that take a count and return seconds, one number for
each call or one for all. What a subject cannot do it does not have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("blocking", "lockstep", "tcp", "stdio", "tls", "grpc")
ASIDE = ("uncounted",)
"""Measured only where it is asked for by name."""


@contextmanager
def server_process(name: str, token: str) -> Iterator[tuple[str, int]]:
    """A server of subject `name`: its address and process id. It ends when its stdin does."""
    command = [sys.executable, "-m", "bench.subjects", "serve", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(token + "\n")
        process.stdin.flush()
        yield process.stdout.readline().strip(), process.pid
        process.stdin.close()


def announce(address: str) -> None:
    """Tell the client where this server listens."""
    print(address, flush=True)


async def obey(client: Any, server_pid: int, read_line: Callable[[], Awaitable[str]]) -> None:
    """Carry out one measurement for each line of stdin, until it ends."""
    offers = [name for name in dir(client) if not name.startswith("_")]
    print(json.dumps({"pids": [os.getpid(), server_pid], "offers": offers}), flush=True)
    while line := await read_line():
        measurement, count = json.loads(line)
        seconds = await getattr(client, measurement)(count)
        print(json.dumps(seconds), flush=True)
