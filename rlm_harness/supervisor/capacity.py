"""Who may call the model now, and who may be at work. Neither can deadlock, and nobody starves.

A model call waits for nothing but the endpoint, so its slot always comes back. Waiting calls of shallow agents go
first, as others wait for them, but only so far: a level of depth counts as much as AGEING seconds of waiting.

A slot is kept while its call waits to be tried again: all have one endpoint and one key, so what refused one most
likely refuses the next, and each that was let in meanwhile would use up its own attempts and fail.

An agent at work has a kernel, a ledger and whatever it runs. It may wait for agents below it, and for no others: so
each depth has places of its own, the deepest wait for nobody, and those above them for something that ends. An agent
that is idle keeps what it has, but no place: it might never be woken.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
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
    """At most `limit` agents of each depth are at work at the same time; the others wait.

    The next is the first to come of those whose parent has the fewest at work: who starts a thousand agents does not
    keep its neighbour, who starts two, from having any.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._depths: dict[int, _Depth] = {}
        self._holders: dict[str, tuple[int, str]] = {}  # depth and parent

    async def take(self, agent: str, depth: int, parent: str) -> None:
        """Wait until `agent` may be at work; at once if it has a place already. Cancellation: harmless."""
        if agent not in self._holders:
            await self._depths.setdefault(depth, _Depth(self._limit)).take(parent)
            self._holders[agent] = (depth, parent)

    def give(self, agent: str) -> None:
        """`agent` is not at work for now; harmless if it has no place."""
        if agent in self._holders:
            depth, parent = self._holders.pop(agent)
            self._depths[depth].give(parent)


class _Depth:
    """The places of one depth."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._working = Counter[str]()  # by parent
        self._waiting: dict[str, deque[tuple[int, trio.Event]]] = {}  # by parent, in order
        self._arrived = 0

    async def take(self, parent: str) -> None:
        if self._free:
            self._free -= 1
            self._working[parent] += 1
            return
        self._arrived += 1
        entry = (self._arrived, trio.Event())
        queue = self._waiting.setdefault(parent, deque())
        queue.append(entry)
        try:
            await entry[1].wait()
        except trio.Cancelled:
            if entry[1].is_set():  # it was given to us in the same instant
                self.give(parent)
            else:
                self._remove(parent, entry)
            raise

    def give(self, parent: str) -> None:
        self._working[parent] -= 1
        if not self._waiting:
            self._free += 1
            return
        following = min(self._waiting, key=lambda other: (self._working[other], self._waiting[other][0][0]))
        entry = self._waiting[following][0]
        self._remove(following, entry)
        self._working[following] += 1
        entry[1].set()

    def _remove(self, parent: str, entry: tuple[int, trio.Event]) -> None:
        self._waiting[parent].remove(entry)
        if not self._waiting[parent]:
            del self._waiting[parent]
