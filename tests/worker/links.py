"""A worker behind each kind of link."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rlm_harness.workspace import local_worker_url


@contextmanager
def open_link(kind: str) -> Iterator[tuple[str, str | None]]:
    """URL and token: over "stdio" each connection starts a worker of its own, over "tcp" there is one for the block."""
    if kind == "stdio":
        yield local_worker_url(), None
        return
    command = [sys.executable, "-m", "rlm_worker", "serve", "--tcp", "127.0.0.1:0"]
    environment = {"PATH": os.environ["PATH"], "LANG": "C", "RLM_TOKEN": "known-to-both"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        try:
            yield worker.stdout.readline().decode().removeprefix("listening on ").strip(), "known-to-both"
        finally:
            worker.terminate()
