"""How a session ends when its user is cancelled, on the virtual clock: in order, and at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Never

import pytest
import trio
from trio.testing import MockClock

import rlm_wire


class Park(rlm_wire.Request[None], tag="ending.park"):
    pass


class Watch(rlm_wire.StreamRequest[None, int, Never], tag="ending.watch"):
    pass


@pytest.fixture
def parked() -> trio.Event:
    return trio.Event()


def service(parked: trio.Event, reasons: list[str | None]) -> rlm_wire.Service:
    service = rlm_wire.Service()

    @service.handle(Park, stoppable=True)
    async def park(request: Park, call: rlm_wire.IncomingCall[None, None]) -> None:
        with call.stoppable():
            parked.set()
            await trio.sleep_forever()
        reasons.append(call.cancel_reason)

    @service.handle(Watch)
    async def watch(request: Watch) -> None:
        parked.set()
        await trio.sleep_forever()

    return service


async def test_a_cancelled_client_stops_its_calls_at_the_peer_and_leaves_at_once(
    autojump_clock: MockClock, parked: trio.Event
) -> None:
    reasons: list[str | None] = []
    async with rlm_wire.serve("memory:ending-client", service(parked, reasons)):
        began = trio.current_time()
        with trio.CancelScope() as scope:
            async with rlm_wire.connect("memory:ending-client") as peer, trio.open_nursery() as nursery:
                nursery.start_soon(peer.call, Park())
                await parked.wait()
                scope.cancel()
        assert reasons == ["cancelled by the caller"]
        assert trio.current_time() == began


async def test_a_cancelled_server_says_goodbye_at_once(autojump_clock: MockClock, parked: trio.Event) -> None:
    urls: list[str] = []
    serving = trio.Event()
    scope = trio.CancelScope()

    async def serve() -> None:
        with scope:
            async with rlm_wire.serve("memory:ending-server", service(parked, [])) as server:
                urls.extend(server.urls)
                serving.set()
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await serving.wait()
        began = trio.current_time()
        async with rlm_wire.connect(urls[0]) as peer:
            nursery.start_soon(_cancel_when, parked, scope)
            with pytest.raises(rlm_wire.SessionLost, match="the peer ended the session"):
                await peer.call(Park())
        assert trio.current_time() == began


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def test_a_handler_that_ends_the_program_ends_the_session_at_once(autojump_clock: MockClock) -> None:
    failing = rlm_wire.Service()

    @failing.handle(Park)
    async def park(request: Park) -> None:
        raise SystemExit(3)

    began = trio.current_time()
    with pytest.raises(SystemExit):  # noqa: PT012
        async with (
            rlm_wire.serve("memory:ending-program", failing) as server,
            rlm_wire.connect(server.urls[0]) as peer,
        ):
            with pytest.raises(rlm_wire.SessionLost):
                await peer.call(Park())
    assert trio.current_time() == began


async def test_a_call_that_is_left_while_the_session_says_goodbye_is_left_in_peace(parked: trio.Event) -> None:
    leaving, left = trio.Event(), trio.Event()

    @asynccontextmanager
    async def lifespan(peer: rlm_wire.Peer) -> AsyncIterator[None]:
        yield
        leaving.set()

    async def hold(peer: rlm_wire.Peer) -> None:
        async with peer.open(Watch()):
            await leaving.wait()
        left.set()

    async with (
        rlm_wire.serve("memory:ending-left", service(parked, [])),
        trio.open_nursery() as nursery,
        rlm_wire.connect("memory:ending-left", rlm_wire.Service(lifespan)) as peer,
    ):
        nursery.start_soon(hold, peer)
        await parked.wait()
    assert left.is_set()
