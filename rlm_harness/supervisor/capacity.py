"""Who may call the model now, and who may be at work. Neither can deadlock, and nobody starves.

A model call waits for nothing but the endpoint, so its slot always comes back. Waiting calls of shallow agents go
first, as others wait for them, but only so far: a level of depth counts as much as AGEING seconds of waiting.

An agent at work has a kernel, a ledger and whatever it runs. It may wait for agents below it, and for no others: so
each depth has places of its own, the deepest wait for nobody, and those above them for something that ends. An agent
that is idle keeps what it has, but no place: it might never be woken.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

AGEING: Final = 10.0
"""Seconds of waiting that make up for one level of depth."""


def rank(depth: int, now: float) -> float:
    """Waiting calls are served in this order, the lowest first. It never changes: none is overtaken for ever."""
    return now + depth * AGEING


class ModelSlots:
    """At most `limit` model calls at the same time."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: list[tuple[float, int, trio.Event]] = []
        self._number = 0

    @asynccontextmanager
    async def slot(self, depth: int) -> AsyncIterator[None]:
        """Around a model call of an agent at `depth`: waits for one of the slots. Cancellation: harmless."""
        await self._take(depth)
        try:
            yield
        finally:
            self._give()

    async def _take(self, depth: int) -> None:
        if self._free:
            self._free -= 1
            return
        self._number += 1
        turn = trio.Event()
        entry = (rank(depth, trio.current_time()), self._number, turn)
        heapq.heappush(self._waiting, entry)
        try:
            await turn.wait()
        except trio.Cancelled:
            if turn.is_set():  # it was given to us in the same instant
                self._give()
            else:
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)
            raise

    def _give(self) -> None:
        if self._waiting:
            heapq.heappop(self._waiting)[2].set()
        else:
            self._free += 1


class Places:
    """At most `limit` agents of each depth are at work at the same time; the others queue, first come first served."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._depths: dict[int, trio.CapacityLimiter] = {}
        self._holders: set[str] = set()

    async def take(self, agent: str, depth: int) -> None:
        """Wait until `agent` may be at work; at once if it has a place already. Cancellation: harmless."""
        if agent not in self._holders:
            await self._depth(depth).acquire_on_behalf_of(agent)
            self._holders.add(agent)

    def give(self, agent: str, depth: int) -> None:
        """`agent` is not at work for now; harmless if it has no place."""
        if agent in self._holders:
            self._holders.remove(agent)
            self._depth(depth).release_on_behalf_of(agent)

    def _depth(self, depth: int) -> trio.CapacityLimiter:
        return self._depths.setdefault(depth, trio.CapacityLimiter(self._limit))
