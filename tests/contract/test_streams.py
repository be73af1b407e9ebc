"""Items, both ways, over every transport: order, back-pressure, ends."""

from __future__ import annotations

import pytest
import trio
from contract.calculator import Add, Blobs, Count, Swap, Total
from contract.conftest import Endpoint

import rlm_wire


async def test_items_arrive_in_order_and_then_the_result(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, peer.open(Count(1000)) as call:
        assert [item async for item in call] == list(range(1000))
        assert await call.result() == 1000
        assert await call.result() == 1000


async def test_items_go_to_the_handler_until_sending_is_closed(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, peer.open(Total()) as call:
        for number in range(100):
            await call.send(number)
        await call.close_sending()
        assert await call.result() == 4950


async def test_items_both_ways(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, peer.open(Swap()) as call:
        for word in ("one", "two"):
            await call.send(word)
            assert await anext(call) == word.upper()
        await call.close_sending()
        with pytest.raises(StopAsyncIteration):
            await anext(call)
        assert await call.result() == 2


@pytest.mark.parametrize("size", [1_000, 65_536, 1_500_000])
async def test_a_reader_that_waits_holds_the_sender_back_and_loses_nothing(endpoint: Endpoint, size: int) -> None:
    count = 24_000_000 // size // 10
    async with endpoint.connect() as peer, peer.open(Blobs(count, size)) as call:
        assert await peer.call(Add(1, 2)) == 3  # the stream that nobody reads is in nobody's way
        received = [len(item) async for item in call]
        assert received == [size] * count
        assert await call.result() == count


async def test_calling_a_stream_request_skips_its_items(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer:
        assert await peer.call(Count(100_000)) == 100_000


async def test_sending_to_a_call_that_has_ended_says_so(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, peer.open(Total()) as call:
        await call.close_sending()
        assert await call.result() == 0
        with pytest.raises(trio.BrokenResourceError):
            await call.send(1)


async def test_sending_to_a_call_that_was_cancelled_says_so_and_closing_it_is_harmless(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, peer.open(Total()) as call:
        call.cancel()
        with pytest.raises((trio.BrokenResourceError, rlm_wire.CallError)):
            await call.send(1)
        await call.close_sending()
        with pytest.raises(rlm_wire.CallError) as caught:
            await call.result()
        assert caught.value.code == "cancelled"


async def test_a_handler_that_waits_for_items_is_cancelled_and_not_told_that_there_are_no_more(
    endpoint: Endpoint,
) -> None:
    async with endpoint.connect() as peer, peer.open(Total()) as call:
        await call.send(1)
        assert await peer.call(Add(1, 2)) == 3
        call.cancel()
        with pytest.raises(rlm_wire.CallError) as caught:
            await call.result()
        assert caught.value.code == "cancelled"


async def test_a_wrong_item_reaches_the_handler_as_its_callers_fault(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, peer.open(Total()) as call:
        await call.send("one")  # type: ignore[arg-type]
        with pytest.raises(rlm_wire.CallError) as caught:
            await call.result()
        assert caught.value.code == "invalid_argument"
        assert await peer.call(Add(1, 2)) == 3


async def test_b45_ten_thousand_items_never_stop_the_reply(endpoint: Endpoint) -> None:
    async with endpoint.connect() as peer, peer.open(Count(10_000)) as call:
        number = 0
        async for item in call:
            if item % 1000 == 0:
                assert await peer.call(Add(item, 1)) == item + 1
            number += 1
        assert number == await call.result() == 10_000
