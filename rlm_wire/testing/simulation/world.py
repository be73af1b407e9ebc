"""What simulated peers do to each other, and the model that says what must come of it.

Every piece of work has a number of its own, and the model counts how often each number was executed. Items say what
their place is.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import Any, Never

import trio

from rlm_wire.broker.incoming import IncomingCall
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.services import Service
from rlm_wire.errors import Fate
from rlm_wire.methods.base import Request, StreamRequest
from rlm_wire.testing.simulation.audit import overfull


class Work(Request[int], tag="simulated.work"):
    number: int
    seconds: float
    padding: bytes


class Quick(Request[int], tag="simulated.quick"):
    number: int


class Back(Request[int], tag="simulated.back"):
    """The handler has its caller do `Work` of that number."""

    number: int


class Down(StreamRequest[int, bytes, Never], tag="simulated.down"):
    number: int
    sizes: list[int]


class Up(StreamRequest[list[int], Never, bytes], tag="simulated.up"):
    """The handler answers the sizes of the items it took."""

    number: int


class Sip(StreamRequest[int, Never, bytes], tag="simulated.sip"):
    """The handler ends after so many items, whatever is still under way."""

    number: int
    items: int


class Swap(StreamRequest[int, int, int], tag="simulated.swap"):
    number: int


class Park(Request[str], tag="simulated.park"):
    """Waits until it is cancelled, and says so."""

    number: int


class Model:
    """What happened so far, in all peers together."""

    def __init__(self) -> None:
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.cut = 0
        """Connections that were cut."""
        self._numbers = 0

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def check_once(self, number: int) -> None:
        """That work is done: it has run, and only once."""
        assert self.begun[number] == self.ended[number] == 1, f"work {number} began {self.begun[number]} times"

    def check_lost(self, number: int, fate: Fate) -> None:
        """The call for that work was lost, and its caller was told what had become of it."""
        begun = self.begun[number]
        assert begun <= (fate != "not_sent"), f"work {number} began {begun} times, and was said to be {fate}"
        assert begun or fate != "executed", f"work {number} never began, and was said to be {fate}"

    def check_all(self) -> None:
        """Nothing ran twice, and nothing runs on."""
        assert all(times == 1 for times in self.begun.values()), self.begun.most_common(3)
        assert self.begun == self.ended, self.begun - self.ended

    def service(self) -> Service:
        """Answers every method, and counts."""
        service = Service()

        @service.handle(Work)
        async def work(request: Work) -> int:
            self.begun[request.number] += 1
            try:
                await trio.sleep(request.seconds)
            finally:
                self.ended[request.number] += 1
            return len(request.padding)

        @service.handle(Quick)
        def quick(request: Quick) -> int:
            self.begun[request.number] += 1
            self.ended[request.number] += 1
            return request.number

        @service.handle(Back)
        async def back(request: Back, call: IncomingCall[Never, Never]) -> int:
            return await call.peer.call(Work(request.number, 0.01, b"back"))

        self._handle_streams(service)
        return service

    def _handle_streams(self, service: Service) -> None:
        @service.handle(Down)
        async def down(request: Down, call: IncomingCall[bytes, Never]) -> int:
            self.begun[request.number] += 1
            try:
                for at, size in enumerate(request.sizes):
                    await call.send(at.to_bytes(4, "big") + bytes(size))
            finally:
                self.ended[request.number] += 1
            return len(request.sizes)

        @service.handle(Up)
        async def up(request: Up, call: IncomingCall[Never, bytes]) -> list[int]:
            self.begun[request.number] += 1
            try:
                return [len(item) async for item in call]
            finally:
                self.ended[request.number] += 1

        @service.handle(Sip)
        async def sip(request: Sip, call: IncomingCall[Never, bytes]) -> int:
            self.begun[request.number] += 1
            try:
                for _ in range(request.items):
                    await anext(call)
            finally:
                self.ended[request.number] += 1
            return request.items

        @service.handle(Swap)
        async def swap(request: Swap, call: IncomingCall[int, int]) -> int:
            self.begun[request.number] += 1
            count = 0
            try:
                async for item in call:
                    await call.send(item * 2)
                    count += 1
            finally:
                self.ended[request.number] += 1
            return count

        @service.handle(Park, stoppable=True)
        async def park(request: Park, call: IncomingCall[Never, Never]) -> str:
            self.begun[request.number] += 1
            try:
                with call.stoppable():
                    await trio.sleep_forever()
            finally:
                self.ended[request.number] += 1
            return f"stopped {request.number}"


class Caller:
    """One task that makes calls at `peer`, each of its own kind, and checks what they give."""

    def __init__(self, model: Model, peer: Peer, rng: random.Random, *, relayed: bool = False) -> None:
        self._model = model
        self._peer = peer
        self._rng = rng
        self._ways: list[Any] = [self._work, self._quick, self._cancelled]
        if not relayed:
            self._ways += [self._down, self._left, self._up, self._sip, self._swap, self._back, self._park]

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await self.step(self._model.number())
            problems = overfull(self._peer)
            assert not problems, problems
            await trio.sleep(self._rng.choice((0, 0, 0.01, 1.0)))

    async def step(self, number: int) -> None:
        """One call, of any kind, whose work has that number."""
        await self._rng.choice(self._ways)(number)

    def _size(self) -> int:
        return self._rng.choice((0, 10, 500, 500, 20_000, 70_000, 140_000))

    async def _work(self, number: int) -> None:
        size = self._size()
        assert await self._peer.call(Work(number, self._rng.choice((0, 0.1, 3.0)), bytes(size))) == size
        self._model.check_once(number)

    async def _quick(self, number: int) -> None:
        assert await self._peer.call(Quick(number)) == number
        self._model.check_once(number)

    async def _back(self, number: int) -> None:
        assert await self._peer.call(Back(number)) == len(b"back")
        self._model.check_once(number)

    async def _cancelled(self, number: int) -> None:
        with trio.move_on_after(self._rng.choice((0, 0.01, 0.5, 10))):
            await self._peer.call(Work(number, 100.0, bytes(self._size())))
            raise AssertionError("work that was to be cancelled has ended by itself")
        assert self._model.begun[number] <= 1

    async def _down(self, number: int) -> None:
        sizes = [self._size() for _ in range(self._rng.choice((1, 5, 30)))]
        async with self._peer.open(Down(number, sizes)) as call:
            got = [(int.from_bytes(item[:4], "big"), len(item) - 4) async for item in call]
            assert got == list(enumerate(sizes))
            assert await call.result() == len(sizes)
        self._model.check_once(number)

    async def _left(self, number: int) -> None:
        """Items that nobody takes any more arrive, large ones among them."""
        async with self._peer.open(Down(number, [self._size() for _ in range(30)])) as call:
            for at in range(self._rng.choice((0, 1, 3))):
                assert (await anext(call))[:4] == at.to_bytes(4, "big")
        assert self._model.begun[number] <= 1

    async def _sip(self, number: int) -> None:
        items = self._rng.choice((0, 1, 3))
        async with self._peer.open(Sip(number, items)) as call:
            with suppress(trio.BrokenResourceError):
                while True:
                    await call.send(bytes(self._size()))
            assert await call.result() == items
        self._model.check_once(number)

    async def _up(self, number: int) -> None:
        sizes = [self._size() for _ in range(self._rng.choice((1, 5, 30)))]
        async with self._peer.open(Up(number)) as call:
            for size in sizes:
                await call.send(bytes(size))
            await call.close_sending()
            assert await call.result() == sizes
        self._model.check_once(number)

    async def _swap(self, number: int) -> None:
        async with self._peer.open(Swap(number)) as call:
            for item in range(5):
                await call.send(item)
                assert await anext(call) == item * 2
            await call.close_sending()
            assert await call.result() == 5
        self._model.check_once(number)

    async def _park(self, number: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._parked, number)
            await trio.sleep(self._rng.choice((0, 0.5, 5.0)))
            nursery.cancel_scope.cancel()
        assert self._model.begun[number] <= 1

    async def _parked(self, number: int) -> None:
        await self._peer.call(Park(number))
