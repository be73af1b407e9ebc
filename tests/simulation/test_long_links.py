"""Long fat links, in exact virtual time: what costs how many round trips, and that a stream fills the link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Never

import pytest
import trio

import rlm_wire
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.services import Service
from rlm_wire.endpoints.client import open_client
from rlm_wire.endpoints.meeting import Ours, Watch, Way
from rlm_wire.endpoints.server import open_server
from rlm_wire.frames.limits import Limits
from rlm_wire.testing.distance import Distance, DistantTransport
from rlm_wire.testing.faults import WrappedStream
from rlm_wire.testing.simulation.scheduling import run_seeded
from rlm_wire.transports import Buffer

ITEM = 64 * 1024
STREAM = 64 * 1024 * 1024
RATE = 12_500_000
"""100 Mbit/s, in bytes a second."""

round_trips = pytest.mark.parametrize("round_trip", [0.1, 0.2])


class Tool(rlm_wire.Request[str], tag="far.tool"):
    command: str


class Produce(rlm_wire.StreamRequest[int, bytes, Never], tag="far.produce"):
    count: int


class Consume(rlm_wire.StreamRequest[int, Never, bytes], tag="far.consume"):
    pass


def service() -> Service:
    service = Service()

    @service.handle(Tool)
    async def tool(request: Tool) -> str:
        await trio.lowlevel.checkpoint()
        return request.command

    @service.handle(Produce)
    async def produce(request: Produce, call: rlm_wire.IncomingCall[bytes, Never]) -> int:
        for _ in range(request.count):
            await call.send(bytes(ITEM))
        return request.count

    @service.handle(Consume)
    async def consume(request: Consume, call: rlm_wire.IncomingCall[Never, bytes]) -> int:
        return sum([len(item) async for item in call])

    return service


@asynccontextmanager
async def far_away(
    round_trip: float, rate: float = RATE, watch: Watch = lambda stream: stream
) -> AsyncIterator[rlm_wire.Peer]:
    """A peer behind TCP and a token, so far away; `watch` is put around the streams of both."""
    way = Way(DistantTransport(Distance(round_trip, rate)), "", watch=watch)
    ours = Ours(service(), "token", Limits(), Patience())
    async with open_server(way, ours), open_client(way, ours) as peer:
        yield peer


async def small_calls(peer: rlm_wire.Peer, took: list[float]) -> None:
    while True:
        start = trio.current_time()
        await peer.call(Tool("ls"))
        took.append(trio.current_time() - start)


@round_trips
def test_a_first_call_costs_four_round_trips_and_each_later_one_costs_one(round_trip: float) -> None:
    """One to connect, two for the handshake, one for the call."""

    async def main(_: object) -> None:
        start = trio.current_time()
        async with far_away(round_trip) as peer:
            await peer.call(Tool("make"))
            assert trio.current_time() - start <= 4.01 * round_trip
            start = trio.current_time()
            await peer.call(Tool("make"))
            assert trio.current_time() - start <= 1.01 * round_trip

    run_seeded(0, main)


@round_trips
def test_a_burst_of_64_calls_costs_one_round_trip(round_trip: float) -> None:
    async def main(_: object) -> None:
        async with far_away(round_trip) as peer:
            start = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(64):
                    nursery.start_soon(peer.call, Tool("make"))
            assert trio.current_time() - start <= 1.05 * round_trip

    run_seeded(0, main)


def test_a_burst_of_calls_leaves_in_few_sends_and_so_do_its_answers() -> None:
    """Each small send is a packet, and a fresh TCP connection may have but ten under way: more cost a round trip."""
    sends: list[int] = []

    class Counted(WrappedStream):
        def send_nowait(self, data: Sequence[Buffer]) -> int:
            sends.append(super().send_nowait(data))
            return sends[-1]

    async def main(_: object) -> None:
        async with far_away(0.1, watch=Counted) as peer:
            sends.clear()
            async with trio.open_nursery() as nursery:
                for _ in range(64):
                    nursery.start_soon(peer.call, Tool("make"))
            assert len(sends) <= 10

    run_seeded(0, main)


@round_trips
@pytest.mark.parametrize("rate", [RATE, 4 * RATE])
def test_a_stream_fills_the_link_and_small_calls_beside_it_stay_within_two_round_trips(
    round_trip: float, rate: float
) -> None:
    """A window of 1 MiB, which does not grow, would fill 100 Mbit/s up to 84 ms only."""

    async def main(_: object) -> None:
        took: list[float] = []
        count = STREAM // ITEM
        async with far_away(round_trip, rate) as peer, trio.open_nursery() as nursery:
            nursery.start_soon(small_calls, peer, took)
            start = trio.current_time()
            async with peer.open(Produce(count)) as call:
                arrivals = [trio.current_time() async for _ in call]
                assert await call.result() == count
            nursery.cancel_scope.cancel()
        assert len(arrivals) == count
        assert arrivals[-1] - arrivals[-count // 4] <= 1.05 * STREAM / 4 / rate, (
            "the last quarter is as fast as the link"
        )
        assert arrivals[-1] - start <= STREAM / rate + 6 * round_trip, "and the link was full soon after the beginning"
        assert max(took) <= 2 * round_trip

    run_seeded(0, main)


@round_trips
def test_a_stream_towards_the_handler_fills_the_link_as_well(round_trip: float) -> None:
    async def main(_: object) -> None:
        took: list[float] = []
        async with far_away(round_trip) as peer, trio.open_nursery() as nursery:
            nursery.start_soon(small_calls, peer, took)
            start = trio.current_time()
            async with peer.open(Consume()) as call:
                for _ in range(STREAM // ITEM):
                    await call.send(bytes(ITEM))
                await call.close_sending()
                assert await call.result() == STREAM
            end = trio.current_time()
            nursery.cancel_scope.cancel()
        assert end - start <= STREAM / RATE + 6 * round_trip
        assert max(took) <= 2 * round_trip

    run_seeded(0, main)
