"""The streams with faults do what they say, and no more."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from transports.streams import connected, receive

from rlm_wire.errors import TransportError
from rlm_wire.testing import CutStream, StalledStream, TricklingStream


async def test_a_trickling_stream_moves_so_many_bytes_at_a_time() -> None:
    async with connected("memory:x") as (one, other):
        trickling = TricklingStream(one, 3)
        assert trickling.send_nowait([b"1234567"]) == 0
        await trickling.send([b"1234567", b"89"])
        await other.send([b"abcdefg"])
        assert await receive(other, 9) == b"123456789"
        assert await trickling.receive_into(memoryview(bytearray(100))) == 3


async def test_a_cut_stream_breaks_after_so_many_bytes_sent() -> None:
    async with connected("memory:x") as (one, other):
        cut = CutStream(one, sent=5)
        await cut.send([b"123"])
        with pytest.raises(TransportError, match="cut"):
            await cut.send([b"456"])
        with pytest.raises(TransportError, match="cut"):
            await cut.receive_into(memoryview(bytearray(1)))
        assert await receive(other, 5) == b"12345"


async def test_a_cut_stream_breaks_after_so_many_bytes_received() -> None:
    async with connected("memory:x") as (one, other):
        cut = CutStream(one, received=2)
        await other.send([b"123"])
        assert await receive(cut, 2) == b"12"
        with pytest.raises(TransportError, match="cut"):
            await receive(cut, 1)


async def test_cutting_wakes_a_waiting_receiver() -> None:
    async with connected("memory:x") as (one, _):
        cut = CutStream(one)
        async with trio.open_nursery() as nursery:

            async def broken() -> None:
                with pytest.raises(TransportError, match="cut"):
                    await receive(cut, 1)

            nursery.start_soon(broken)
            await trio.testing.wait_all_tasks_blocked()
            cut.cut()


async def test_a_stalled_stream_moves_nothing_until_it_is_resumed() -> None:
    async with connected("memory:x") as (one, other):
        stalled = StalledStream(one)
        stalled.stall()
        assert stalled.send_nowait([b"x"]) == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stalled.send, [b"abc"])
            await trio.testing.wait_all_tasks_blocked()
            assert other.send_nowait([b"back"]) == 4
            with trio.CancelScope() as scope:
                nursery.start_soon(receive, stalled, 4)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
            stalled.resume()
        assert await receive(other, 3) == b"abc"
