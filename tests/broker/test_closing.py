"""Calls that arrive while a session closes, and calls whose peer never answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from contract.calculator import Ask, Wait

import rlm_wire


async def test_a_call_that_arrives_while_the_session_closes_is_answered_unavailable() -> None:
    leaving, release = trio.Event(), trio.Event()
    met: list[rlm_wire.Peer] = []

    @asynccontextmanager
    async def slow_to_leave(peer: rlm_wire.Peer) -> AsyncIterator[None]:
        yield
        leaving.set()
        await release.wait()

    @asynccontextmanager
    async def meet(peer: rlm_wire.Peer) -> AsyncIterator[None]:
        met.append(peer)
        yield

    ours = rlm_wire.Service(slow_to_leave)

    @ours.handle(Ask)
    async def ask(request: Ask) -> str:
        return ""

    async def visit() -> None:
        async with rlm_wire.connect("memory:closing", ours):
            pass

    async with rlm_wire.serve("memory:closing", rlm_wire.Service(meet)), trio.open_nursery() as nursery:
        nursery.start_soon(visit)
        await leaving.wait()
        with pytest.raises(rlm_wire.CallError) as caught:
            await met[0].call(Ask("still there?"))
        assert (caught.value.code, caught.value.retryable) == ("unavailable", True)
        release.set()


async def test_a_deadline_ends_the_wait_also_for_work_that_cannot_be_stopped(
    autojump_clock: trio.testing.MockClock,
) -> None:
    release = trio.Event()
    service = rlm_wire.Service()

    @service.handle(Wait)
    async def wait(request: Wait) -> str:
        with trio.CancelScope(shield=True):
            await release.wait()
        return ""

    async with rlm_wire.serve("memory:stuck", service), rlm_wire.connect("memory:stuck") as peer:
        start = trio.current_time()
        with pytest.raises(rlm_wire.CallError) as caught:
            await peer.call(Wait("w"), timeout=2)
        assert caught.value.code == "deadline_exceeded"
        assert trio.current_time() - start < 10
        release.set()
