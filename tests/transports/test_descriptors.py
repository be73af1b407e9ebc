"""Descriptors 0, 1 and 2 stay what they are, whatever a program was started with (B10)."""

from __future__ import annotations

import subprocess
import sys

import pytest

CONNECTS = """
import os, stat, trio
from rlm_wire.transports import transport_for
{first}
async def main():
    transport, address = transport_for("tcp://127.0.0.1:0")
    async with transport.listen(address) as listener:
        transport, address = transport_for(listener.urls[0])
        async with transport.connect(address) as one, transport_for("stdio:")[0].connect("cat") as two:
            other = await listener.accept()
            kinds = []
            for stream in (one, two, other):
                kinds += [stream._receiving > 2, stream._sending > 2]
            used = [sock.fileno() > 2 for sock in listener._sockets]
            report = repr((all(kinds), all(used)))
            await other.send([b"x"])
            await one.receive_into(memoryview(bytearray(1)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.aclose)
                nursery.start_soon(other.aclose)
    with open({path!r}, "w") as file:
        file.write(report)
trio.run(main)
"""


@pytest.mark.parametrize(
    "first", ["", "from rlm_wire.transports.descriptors import occupy_standard_descriptors as o; o()"]
)
def test_no_stream_gets_the_number_of_a_standard_one(first: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("report") / "report"
    script = tmp_path_factory.mktemp("script") / "script.py"
    script.write_text(CONNECTS.format(first=first, path=str(path)))
    subprocess.run(["sh", "-c", f"{sys.executable} {script} <&- >&- 2>&-"], check=True)
    assert path.read_text() == "(True, True)"
