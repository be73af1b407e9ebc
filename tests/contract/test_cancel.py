"""Cancelling, deadlines and leaving, over every transport: the work has stopped when the caller goes on."""

from __future__ import annotations

import pytest
import trio
from contract.calculator import Add, Count, Marks, Wait
from contract.conftest import Endpoint

import rlm_wire


async def wait_for_mark(peer: rlm_wire.Peer, mark: str) -> None:
    while mark not in await peer.call(Marks()):
        await trio.lowlevel.checkpoint()


async def test_cancelling_a_call_stops_its_work_before_the_caller_goes_on(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.call, Wait("w"))
            await wait_for_mark(peer, "w started")
            nursery.cancel_scope.cancel()
        assert "w stopped" in await peer.call(Marks())


async def test_cancel_gives_the_partial_result(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, peer.open(Count(None)) as call:
        assert await anext(call) == 0
        call.cancel("enough")
        call.cancel("twice does no harm")
        assert await call.result() >= 1


async def test_a_call_cancelled_at_once_still_gives_its_partial_result(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, peer.open(Count(None)) as call:
        call.cancel()
        assert await call.result() >= 0


async def test_leaving_an_open_call_stops_it(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        async with peer.open(Count(None)) as call:
            await anext(call)
        assert call.ended
        assert await peer.call(Add(1, 2)) == 3


async def test_a_deadline_stops_the_handler(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        with pytest.raises(rlm_wire.CallError) as caught:
            await peer.call(Wait("w"), timeout=0.01)
        assert caught.value.code == "deadline_exceeded"
        assert await peer.call(Marks()) in ([], ["w started", "w stopped"])


async def test_a_deadline_gives_the_partial_result_of_a_stoppable_handler(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, peer.open(Count(None), timeout=0.05) as call:
        assert len([item async for item in call]) == await call.result()


async def test_closing_the_session_stops_what_runs_in_it(endpoint: Endpoint) -> None:
    async with trio.open_nursery() as nursery, endpoint.connect() as peer:

        async def wait() -> None:
            with pytest.raises(rlm_wire.SessionLost):
                await peer.call(Wait("w"))

        nursery.start_soon(wait)
        await wait_for_mark(peer, "w started")


async def test_b55_cancels_racing_with_replies_give_one_answer_each(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        for number in range(300):
            with trio.move_on_after(0) as scope:
                assert await peer.call(Add(number, 1)) == number + 1
            async with peer.open(Count(number % 7)) as call:
                for _ in range(number % 5):
                    await trio.lowlevel.checkpoint()
                call.cancel()
                assert 0 <= await call.result() <= number % 7
            del scope
        assert await peer.call(Add(1, 2)) == 3
