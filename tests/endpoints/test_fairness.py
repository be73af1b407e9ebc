"""Many sessions at one server: what one of them does holds up another for no more than its fair share."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Never

import trio

import rlm_wire
from rlm_wire.broker.line import BATCH

FLOOD = 5_000
LIMITS = rlm_wire.Limits(calls=FLOOD)


class Count(rlm_wire.Request[int], tag="fair.count"):
    """How many calls of the flood have begun."""


class Flood(rlm_wire.Request[None], tag="fair.flood"):
    pass


class Pour(rlm_wire.StreamRequest[int, bytes, Never], tag="fair.pour"):
    """Items without end."""


class Floods:
    """A service that counts what it has done for whom."""

    def __init__(self) -> None:
        self.begun = 0
        self.poured = 0
        self.service = rlm_wire.Service()

        @self.service.handle(Count)
        async def count(request: Count) -> int:
            await trio.lowlevel.checkpoint()
            return self.begun

        @self.service.handle(Flood)
        async def flood(request: Flood) -> None:
            self.begun += 1
            await trio.lowlevel.checkpoint()

        @self.service.handle(Pour)
        async def pour(request: Pour, call: rlm_wire.IncomingCall[bytes, Never]) -> int:
            while True:
                await call.send(bytes(100_000))
                self.poured += 1


async def test_a_flood_of_calls_of_one_session_holds_up_another_by_a_few_batches() -> None:
    floods = Floods()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(rlm_wire.serve("memory:fair", floods.service, limits=LIMITS))
        loud = await stack.enter_async_context(rlm_wire.connect("memory:fair", limits=LIMITS))
        quiet = await stack.enter_async_context(rlm_wire.connect("memory:fair"))
        meanwhile: list[int] = []
        async with trio.open_nursery() as nursery:
            for _ in range(FLOOD):
                nursery.start_soon(loud.call, Flood())
            while floods.begun < FLOOD:
                before = floods.begun
                await quiet.call(Count())
                meanwhile.append(floods.begun - before)
        assert max(meanwhile) <= 8 * BATCH, "its calls waited for this many calls of the other session"
        assert len(meanwhile) > 5


async def test_streams_of_one_session_hold_up_another_by_a_few_bursts() -> None:
    floods = Floods()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(rlm_wire.serve("memory:fair", floods.service))
        loud = await stack.enter_async_context(rlm_wire.connect("memory:fair"))
        quiet = await stack.enter_async_context(rlm_wire.connect("memory:fair"))
        async with trio.open_nursery() as nursery:

            async def drain() -> None:
                async with loud.open(Pour()) as call:
                    async for _ in call:
                        pass

            for _ in range(20):
                nursery.start_soon(drain)
            await loud.call(Count())
            meanwhile: list[int] = []
            for _ in range(20):
                before = floods.poured
                await quiet.call(Count())
                meanwhile.append(floods.poured - before)
            nursery.cancel_scope.cancel()
        assert max(meanwhile) <= 100, "its call waited for this many items of 100 kB"
