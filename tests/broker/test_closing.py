"""Calls that arrive while a session closes, and calls whose peer never answers."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from contract.calculator import Ask, Wait

import rlm_wire
from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.session import open_session
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.limits import Limits


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


async def test_a_session_that_a_cancelled_task_begins_ends_at_once(autojump_clock: trio.testing.MockClock) -> None:
    limits, ended = Limits(), trio.Event()
    connection = Connection(client=False, codec=codec_named("msgpack"), ours=limits, theirs=limits)
    peer = rlm_wire.Peer(connection, rlm_wire.Service(), PeerInfo("a test", 1, "msgpack", [], limits, ""), "nowhere")

    async def begin() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            async with open_session(peer):
                await trio.sleep_forever()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        with trio.move_on_after(60):
            await ended.wait()
        try:
            assert ended.is_set()
        finally:
            peer.lose(rlm_wire.SessionLost("the test is over"))  # nothing else ends what is shielded


def test_a_connect_that_is_cancelled_at_the_very_moment_of_the_welcome_ends_at_once() -> None:
    async def connect() -> None:
        with trio.CancelScope() as scope:

            def cancel_at_welcome(record: dict[str, object]) -> None:
                if record["type"] == "Welcome":
                    scope.cancel()

            async with (
                rlm_wire.serve("memory:late", rlm_wire.Service()),
                rlm_wire.connect("memory:late", trace=rlm_wire.Trace(cancel_at_welcome)),
            ):
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(connect,), daemon=True)  # where it fails, nothing could end it
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


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
