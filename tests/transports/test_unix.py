"""What is particular to Unix sockets: the file, and who is at the other end."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
import trio
from transports.streams import connected

from rlm_wire.errors import TransportError
from rlm_wire.transports import transport_for


async def test_the_socket_file_is_for_its_owner_and_goes_with_the_listener(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    old = os.umask(0)
    try:
        transport, address = transport_for(f"unix:{path}")
        async with transport.listen(address) as listener:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert listener.urls == [f"unix:{path}"]
    finally:
        os.umask(old)
    assert list(tmp_path.iterdir()) == []


async def test_both_ends_are_private_between_processes_of_one_user(tmp_path: Path) -> None:
    async with connected(f"unix:{tmp_path}/socket") as (one, other):
        assert one.private
        assert other.private


async def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/socket")
    async with connected(f"unix:{tmp_path}/socket"):
        pass


async def test_a_live_listener_is_not_replaced(tmp_path: Path) -> None:
    transport, address = transport_for(f"unix:{tmp_path}/socket")
    async with transport.listen(address) as listener:
        with pytest.raises(TransportError, match="another process is listening there"):
            async with transport.listen(address):
                pass
        async with transport.connect(address):
            probe, real = await listener.accept(), await listener.accept()
            await probe.aclose()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(real.aclose)
                nursery.cancel_scope.cancel()


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("precious")
    transport, address = transport_for(f"unix:{tmp_path}/notes")
    with pytest.raises(TransportError, match="not a socket"):
        async with transport.listen(address):
            pass
    assert (tmp_path / "notes").read_text() == "precious"


async def test_a_socket_file_that_took_the_place_of_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    transport, address = transport_for(f"unix:{path}")
    async with transport.listen(address):
        path.unlink()
        path.write_text("somebody else's")
    assert path.exists()


@pytest.mark.parametrize("path", ["/nonexistent/socket", "x" * 200, "nul\0"])
async def test_an_impossible_path_is_a_transport_error(path: str) -> None:
    transport, address = transport_for(f"unix:{path}")
    with pytest.raises(TransportError, match="cannot connect to unix:"):
        async with transport.connect(address):
            pass
    with pytest.raises(TransportError, match="cannot listen on unix:"):
        async with transport.listen(address):
            pass
