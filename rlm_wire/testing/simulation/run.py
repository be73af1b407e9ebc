"""One seed: the network's fates, the peers, and what must hold in the end."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec
import trio

from rlm_wire.broker.incoming import IncomingCall
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.relay import relay
from rlm_wire.broker.services import Service
from rlm_wire.endpoints.client import open_client
from rlm_wire.endpoints.meeting import Ours, Way
from rlm_wire.endpoints.server import open_server
from rlm_wire.errors import HandshakeError, TransportError
from rlm_wire.frames.limits import Limits
from rlm_wire.testing.simulation.audit import unsettled
from rlm_wire.testing.simulation.network import Fate, Network
from rlm_wire.testing.simulation.scheduling import run_seeded
from rlm_wire.testing.simulation.world import Caller, Model, Quick, Work

LIMITS: Final = Limits(
    frame=66_560, message=200_000, calls=64, replay=210_000, reassembly=420_000, item_window=3_000, lease=120
)
"""Small, so that every one of them is reached."""

FAULTY: Final = 6
"""Connections with a fault, at most, before they are sound: so that none is away for longer than the lease."""

TOKEN: Final = b"of the simulation"
VIRTUAL_LIMIT: Final = 3600.0
"""Virtual seconds after which something must be stuck."""

_CALLERS: Final = 4
_STEPS: Final = 6


def simulate(seed: int) -> int:
    """Run the peers of `seed` to their end, and return how many connections were cut.

    Raises AssertionError, or whatever else went wrong. Not to be called while Trio runs in this thread.
    """
    return run_seeded(seed, _simulate)


async def _simulate(rng: random.Random) -> int:
    model = Model()
    tasks_before = trio.lowlevel.current_statistics().tasks_living
    with trio.fail_after(VIRTUAL_LIMIT):
        if rng.random() < 0.5:
            await _two_peers(model, rng)
        else:
            await _three_peers(model, rng)
    model.check_all()
    assert trio.lowlevel.current_statistics().tasks_living == tasks_before, "tasks are left"
    return model.cut


async def _two_peers(model: Model, rng: random.Random) -> None:
    async with joined(model, model.service(), model.service(), rng) as (peer, server_side):
        await _work(model, [peer, server_side], rng)
        await _settle(model, peer, server_side)


async def _three_peers(model: Model, rng: random.Random) -> None:
    """A caller, a relay, and the one that does the work, as harness, worker and kernel are."""
    async with joined(model, Service(), model.service(), rng) as (onward, far_side):
        middle = Service()

        @middle.handle_rest
        async def rest(method: str, params: msgspec.Raw, call: IncomingCall[Any, Any]) -> msgspec.Raw:
            return await relay(method, params, call, onward, scope=None)

        async with joined(model, Service(), middle, rng) as (peer, middle_side):
            await _work(model, [peer], rng, relayed=True)
            await _settle(model, peer, middle_side)
            await _settle(model, onward, far_side)


async def _work(model: Model, peers: list[Peer], rng: random.Random, *, relayed: bool = False) -> None:
    async with trio.open_nursery() as nursery:
        for peer in peers:
            for _ in range(_CALLERS):
                caller = Caller(model, peer, random.Random(rng.random()), relayed=relayed)  # noqa: S311
                nursery.start_soon(caller.run, _STEPS)


async def _settle(model: Model, peer: Peer, other: Peer) -> None:
    """Let everything arrive, then look whether all is at rest."""
    with trio.move_on_after(60):  # cancelled work may stop after its caller has gone
        while model.begun != model.ended:  # noqa: ASYNC110 - no handler should tell anybody but the model
            await trio.sleep(1)
    for _ in range(3):
        number = model.number()
        await peer.call(Quick(number) if other.service.find(Quick.method) else Work(number, 0, b""))
        await trio.sleep(1)
    problems = [*unsettled(peer), *unsettled(other)]
    assert not problems, problems


@asynccontextmanager
async def joined(
    model: Model, near: Service, far: Service, rng: random.Random, plan: Callable[[], Fate] | None = None
) -> AsyncIterator[tuple[Peer, Peer]]:
    """Two peers over a network of their own: the client, and what the server sees of it."""
    private = rng.random() < 0.5
    network = Network(plan or _fates(rng), private=private)
    patience = Patience(jitter=rng.random)
    token = None if private else TOKEN
    way = Way(network, "server")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(network.close)
        server = await stack.enter_async_context(open_server(way, Ours(far, token, LIMITS, patience)))
        peer = await _reach(stack, way, Ours(near, token, LIMITS, patience))
        yield peer, server.sessions[peer.info.session]
        await stack.aclose()
        assert not server.sessions, "the server keeps sessions that are over"
    model.cut += sum(stream.is_cut for stream in network.connections)


async def _reach(stack: AsyncExitStack, way: Way, ours: Ours) -> Peer:
    """The first connection may be cut like any other, and then there is no session to resume."""
    while True:
        try:
            return await stack.enter_async_context(open_client(way, ours))
        except (TransportError, HandshakeError):
            continue


def _fates(rng: random.Random) -> Callable[[], Fate]:
    faulty = rng.randint(0, FAULTY)
    made = 0

    def plan() -> Fate:
        nonlocal made
        made += 1
        delay, piece = rng.choice((0.0, 0.0, 0.001, 0.1)), rng.choice((1 << 20, 1 << 20, 5_000, 300))
        if made > faulty:
            return Fate(delay=delay if piece > 300 else 0.0, piece=piece)
        return Fate(
            refused=rng.random() < 0.1,
            cut_sent=_offset(rng),
            cut_received=_offset(rng),
            half_open=rng.random() < 0.3,
            stall_sent=_offset(rng) if rng.random() < 0.2 else None,
            stall=rng.choice((1.0, 8.0, 40.0)),
            delay=delay,
            lag=rng.choice((0.0, 0.0, 0.05, 1.0)),
            piece=piece,
        )

    return plan


def _offset(rng: random.Random) -> int | None:
    return None if rng.random() < 0.2 else int(10 ** rng.uniform(0, 5.7))
