"""Sessions that outlive their connections, on the virtual clock: what users see, when they end, and who has them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from contract import calculator
from contract.calculator import Add, Count, Echo, Marks, Wait
from trio.testing import MockClock

import rlm_wire
from rlm_wire.broker.calls import DEADLINE_GRACE
from rlm_wire.broker.services import Service
from rlm_wire.endpoints.client import open_client
from rlm_wire.endpoints.meeting import Ours, Way, agree
from rlm_wire.endpoints.server import open_server
from rlm_wire.frames.handshake import ClientHandshake, Resumption, Side
from rlm_wire.frames.limits import Limits
from rlm_wire.testing.simulation import Fate, Network

PATIENCE = rlm_wire.Patience(jitter=lambda: 0.0)


class Stage:
    """A server and its network; `fates` are those of the connections to come, sound ones when it is empty."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self.fates: list[Fate] = []
        self.network = Network(lambda: self.fates.pop(0) if self.fates else Fate())
        self.way = Way(self.network, "stage")
        self.limits = limits
        self.served = Ours(service, None, limits, PATIENCE)

    def ours(self, service: Service | None = None) -> Ours:
        return Ours(service or Service(), None, self.limits, PATIENCE)

    async def cut(self) -> None:
        """Break the connection that was made last, now."""
        await self.network.connections[-1].cut()


@asynccontextmanager
async def stage(limits: Limits = Limits()) -> AsyncIterator[tuple[Stage, rlm_wire.Peer, rlm_wire.Server]]:  # noqa: B008
    built = Stage(calculator.service, limits)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(built.network.close)
        server = await stack.enter_async_context(open_server(built.way, built.served))
        peer = await stack.enter_async_context(open_client(built.way, built.ours()))
        yield built, peer, server


def server_side(server: rlm_wire.Server, peer: rlm_wire.Peer) -> rlm_wire.Peer:
    return server.sessions[peer.info.session]


async def test_calls_and_streams_go_on_and_nothing_but_time_shows(autojump_clock: MockClock) -> None:
    async with stage() as (built, peer, _), trio.open_nursery() as nursery:
        async with peer.open(Count(None)) as call:
            assert await anext(call) == 0
            nursery.start_soon(peer.call, Wait("w"))
            built.fates = [Fate(refused=True)] * 3
            await built.cut()
            assert await peer.wait_state("reconnecting") == "reconnecting"
            assert "was cut" in peer.interruption
            assert await peer.call(Add(1, 2)) == 3  # waits for the new connection
            assert peer.state == "connected"
            for number in range(1, 1000):
                assert await anext(call) == number
            call.cancel()
            assert await call.result() >= 1000
        assert await peer.call(Marks()) == ["w started"]
        nursery.cancel_scope.cancel()
    assert peer.state == "closed"


async def test_the_first_attempt_is_made_at_once_and_the_pauses_grow(autojump_clock: MockClock) -> None:
    async with stage() as (built, peer, _):
        began = trio.current_time()
        await built.cut()
        await peer.call(Add(1, 2))
        assert trio.current_time() == began
        built.fates = [Fate(refused=True)] * 8
        await built.cut()
        await peer.call(Add(1, 2))
        assert trio.current_time() - began == pytest.approx(0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 3.2 + 5 + 5)


async def test_a_session_is_lost_at_both_ends_when_the_lease_is_over(autojump_clock: MockClock) -> None:
    """[R-7.3.13]"""
    async with stage(Limits(lease=20)) as (built, peer, server), trio.open_nursery() as nursery:
        far = server_side(server, peer)
        lost: list[rlm_wire.SessionLost] = []

        async def call() -> None:
            with pytest.raises(rlm_wire.SessionLost) as caught:
                await peer.call(Wait("w"))
            lost.append(caught.value)

        nursery.start_soon(call)
        await peer.call(Add(1, 2))
        built.fates = [Fate(refused=True)] * 100
        began = trio.current_time()
        await built.cut()
        await trio.sleep(19)
        assert (peer.state, far.state) == ("reconnecting", "reconnecting")
        await peer.wait_closed()
        await far.wait_closed()
        assert trio.current_time() - began == pytest.approx(20)
        await trio.sleep(1)
        assert server.sessions == {}
        assert "within 20 s" in str(lost[0])
        assert lost[0].fate == "maybe_executed"
        with pytest.raises(rlm_wire.SessionLost) as caught:
            await peer.call(Add(1, 2))
        assert caught.value.fate == "not_sent"


async def test_without_a_lease_a_session_ends_with_its_connection(autojump_clock: MockClock) -> None:
    """[R-7.3.13]"""
    async with stage(Limits(lease=0)) as (built, peer, server):
        began = trio.current_time()
        await built.cut()
        await peer.wait_closed()
        while server.sessions:
            await trio.lowlevel.checkpoint()
        assert trio.current_time() == began


async def test_a_server_that_does_not_know_the_session_ends_it_at_once(autojump_clock: MockClock) -> None:
    """[R-7.3.4] A new worker process at the old address, say."""
    async with stage() as (built, peer, _), open_server(built.way, built.served):  # takes the address over
        await built.cut()
        with pytest.raises(rlm_wire.SessionLost, match="no such session"):
            await peer.call(Add(1, 2))


async def test_after_a_goodbye_nobody_reconnects(autojump_clock: MockClock) -> None:
    """[R-7.3.12]"""
    async with stage() as (built, peer, server):
        await peer.call(Add(1, 2))
        server_side(server, peer).lose(rlm_wire.SessionLost("enough"))
        await peer.wait_closed()
        assert len(built.network.connections) == 1
        with pytest.raises(rlm_wire.SessionLost, match="given up"):
            await peer.call(Add(1, 2))


async def test_leaving_while_there_is_no_connection_does_not_wait_for_one(autojump_clock: MockClock) -> None:
    async with stage() as (built, _, _):
        async with open_client(built.way, built.ours()) as other:
            built.fates = [Fate(refused=True)] * 1000
            await built.cut()
            await other.wait_state("reconnecting")
            began = trio.current_time()
        assert trio.current_time() == began


async def test_a_cancelled_user_does_not_wait_for_a_connection(autojump_clock: MockClock) -> None:
    async with stage() as (built, _, _):
        with trio.CancelScope() as scope:
            async with open_client(built.way, built.ours()) as other, trio.open_nursery() as nursery:
                nursery.start_soon(other.call, Wait("w"))
                await other.call(Add(1, 2))
                built.fates = [Fate(refused=True)] * 1000
                await built.cut()
                await other.wait_state("reconnecting")
                began = trio.current_time()
                scope.cancel()
        assert trio.current_time() == began


async def test_a_silent_network_is_found_out_and_replaced(autojump_clock: MockClock) -> None:
    """[R-4.3.2]"""
    async with stage() as (built, peer, _):
        built.fates = [Fate(stall_sent=0, stall=10_000.0)]
        await built.cut()
        with trio.fail_after(60):
            await peer.call(Add(1, 2))
        assert len(built.network.connections) == 3


async def test_b62_a_timeout_fires_by_itself_on_a_link_that_carries_nothing(autojump_clock: MockClock) -> None:
    async with stage() as (built, peer, _):
        built.fates = [Fate(stall_sent=3_000, stall=10_000.0)]
        await built.cut()
        await peer.call(Add(1, 2))
        began = trio.current_time()
        with pytest.raises(rlm_wire.CallError, match="no answer to calc"):
            await peer.call(Echo(bytes(5_000)), timeout=1)
        assert trio.current_time() - began == pytest.approx(1 + DEADLINE_GRACE)
        assert peer.state == "connected"  # for all that is known


async def test_a_ping_is_asked_again_on_the_new_connection(autojump_clock: MockClock) -> None:
    async with stage() as (built, peer, _), trio.open_nursery() as nursery:
        await built.cut()
        await peer.wait_state("reconnecting")
        nursery.start_soon(peer.ping)


async def test_callers_wait_while_more_is_queued_than_can_be_kept(autojump_clock: MockClock) -> None:
    limits = Limits(message=100_000, frame=70_000, replay=200_000, reassembly=200_000)
    async with stage(limits) as (built, peer, _):
        built.fates = [Fate(refused=True)] * 5
        await built.cut()
        await peer.wait_state("reconnecting")
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(peer.call, Echo(bytes(50_000)))
            await trio.testing.wait_all_tasks_blocked()
            assert peer._connection.queued < 300_000
            with pytest.raises(rlm_wire.CallError) as caught:
                await peer.call(Echo(bytes(50_000)), timeout=0.01)
            assert caught.value.code == "deadline_exceeded"


async def test_lost_calls_are_told_what_became_of_them(autojump_clock: MockClock) -> None:
    """[R-7.4.1]"""
    fates: dict[str, str] = {}
    async with stage(Limits(lease=5)) as (built, peer, _), trio.open_nursery() as nursery:

        async def make(name: str, call: Callable[[], object]) -> None:
            with pytest.raises(rlm_wire.SessionLost) as caught:
                await call()  # type: ignore[misc]
            fates[name] = caught.value.fate

        async def stream() -> None:
            async with peer.open(Count(None)) as call:
                await anext(call)
                await call.result()

        nursery.start_soon(make, "streaming", stream)
        nursery.start_soon(make, "waiting", lambda: peer.call(Wait("w")))
        await trio.testing.wait_all_tasks_blocked()
        built.fates = [Fate(refused=True)] * 1000
        await built.cut()
        await peer.wait_state("reconnecting")
        nursery.start_soon(make, "queued", lambda: peer.call(Add(1, 2)))
    assert fates == {"streaming": "executed", "waiting": "maybe_executed", "queued": "not_sent"}
    assert peer.loss is not None
    assert "within 5 s" in peer.loss.reason
    assert sorted(call.fate for call in peer.loss.calls) == sorted(fates.values())
    assert {call.method for call in peer.loss.calls} == {"calc.count", "calc.wait", "calc.add"}


async def test_a_session_that_is_closed_is_not_lost(autojump_clock: MockClock) -> None:
    async with stage() as (_, peer, _):
        await peer.call(Add(1, 2))
    assert peer.closed
    assert peer.loss is None


async def resume_by_hand(built: Stage, server: rlm_wire.Server, peer: rlm_wire.Peer, attempt: int) -> object:
    """A second client that knows the session's secret; the outcome of its handshake, after which it says no more."""
    held = server._sessions[peer.info.session]
    wish = Resumption(held.established, peer.frames_received, attempt)
    side = Side("another/1", bytes(range(16)), private=True, limits=built.limits)
    async with built.way.connect() as stream:
        try:
            return (await agree(stream, lambda: ClientHandshake(side, resume=wish), 5)).established
        except rlm_wire.HandshakeError as error:
            return error


async def test_of_two_clients_the_newer_proven_one_wins_and_the_older_is_told(autojump_clock: MockClock) -> None:
    """[R-7.3.8]"""
    async with stage() as (built, peer, server):
        established = await resume_by_hand(built, server, peer, 1)
        assert getattr(established, "resumed", False)
        with pytest.raises(rlm_wire.SessionLost, match="another connection has resumed this session"):
            await peer.call(Add(1, 2))


async def test_an_attempt_that_was_held_up_does_not_displace_a_later_one(autojump_clock: MockClock) -> None:
    """[R-7.3.7]"""
    async with stage() as (built, peer, server):
        for _ in range(2):
            await built.cut()
            await peer.call(Add(1, 2))
        refused = await resume_by_hand(built, server, peer, 1)
        assert "a later connection has resumed the session" in str(refused)
        assert await peer.call(Add(1, 2)) == 3
        assert peer.state == "connected"


async def test_a_session_that_is_gone_leaves_no_trace_in_the_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with stage() as (built, peer, server):
        secret = server._sessions[peer.info.session].established.secret
        await built.cut()
        await peer.call(Add(1, 2))
    assert secret.hex() not in caplog.text
    assert repr(secret) not in caplog.text
