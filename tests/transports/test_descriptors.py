"""Descriptors 0, 1 and 2 stay what they are, whatever a program was started with (B10)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONNECTS = """
import os, sys, trio
from rlm_wire.transports import transport_for

async def main():
    for standard in (0, 1, 2):
        os.close(standard)
    transport, address = transport_for("tcp://127.0.0.1:0")
    async with transport.listen(address) as listener:
        transport, address = transport_for(listener.urls[0])
        async with transport.connect(address) as one, transport_for("stdio:")[0].connect("cat") as two:
            other = await listener.accept()
            used = [sock.fileno() for sock in listener._sockets]
            for stream in (one, two, other):
                used += [stream._receiving, stream._sending]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.aclose)
                nursery.start_soon(other.aclose)
    with open(sys.argv[1], "w") as file:
        file.write(str(min(used)))

trio.run(main)
"""
OCCUPIES = """
import os, sys
from rlm_wire.transports.descriptors import occupy_standard_descriptors
occupy_standard_descriptors()
with open(sys.argv[1], "w") as file:
    file.write(" ".join(os.readlink(f"/proc/self/fd/{standard}") for standard in (0, 1, 2)))
"""


def run(script: str, directory: Path, redirections: str) -> str:
    (directory / "script.py").write_text(script)
    command = f"exec {sys.executable} {directory}/script.py {directory}/report {redirections}"
    subprocess.run(["sh", "-c", command], check=True)
    return (directory / "report").read_text()


def test_no_stream_gets_the_number_of_a_standard_one(tmp_path: Path) -> None:
    assert int(run(CONNECTS, tmp_path, "")) > 2


def test_a_program_started_without_standard_streams_can_fill_their_numbers_first(tmp_path: Path) -> None:
    assert run(OCCUPIES, tmp_path, "<&- >&- 2>&-") == "/dev/null /dev/null /dev/null"
