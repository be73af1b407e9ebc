"""One conversation, cut at every byte of either direction, resumed, comes to the same end as when it was not cut.

It holds what a session can hold: calls both ways, items both ways with credit, a call that is cancelled, one that
fails, a message in Parts. Then the handshake that resumes is cut at every byte as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
import trio
from contract.calculator import Swap

import rlm_wire
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.services import Service
from rlm_wire.endpoints.client import open_client
from rlm_wire.endpoints.meeting import Ours, Way
from rlm_wire.endpoints.server import open_server
from rlm_wire.frames.limits import Limits
from rlm_wire.testing.simulation import Fate, Network
from rlm_wire.testing.simulation.network import FatedStream
from rlm_wire.testing.simulation.scheduling import run_seeded
from rlm_wire.testing.simulation.world import Back, Down, Model, Quick, Up, Work

LIMITS = Limits(item_window=100, lease=60)
LARGE = 70_000
"""A message of so many bytes goes in Parts; in them only some offsets are tried."""

STEP = 1 if "RLM_WIRE_EVERY_BYTE" in os.environ else 5
"""`make simulate` tries every byte; this is what the tests have time for."""


class Refused(rlm_wire.Request[None], tag="cut.refused"):
    pass


def service(model: Model) -> Service:
    service = model.service()

    @service.handle(Refused)
    async def refused(request: Refused) -> None:
        model.begun[0] += 1
        model.ended[0] += 1
        raise rlm_wire.CallError("not_found", "no", data={"why": 1})

    return service


async def converse(peer: rlm_wire.Peer, large: bool) -> list[object]:
    """What is said, and what came of it."""
    outcome: list[object] = [await peer.call(Quick(1)), await peer.call(Back(2))]
    async with peer.open(Down(3, [10, 60, 60, 5])) as down:
        outcome.append([len(item) async for item in down])
        outcome.append(await down.result())
    async with peer.open(Up(4)) as up:
        for size in (1, 90, 90):
            await up.send(bytes(size))
        await up.close_sending()
        outcome.append(await up.result())
    with trio.move_on_after(1):
        await peer.call(Work(5, 1000.0, b""))
    with pytest.raises(rlm_wire.CallError) as caught:
        await peer.call(Refused())
    outcome.append((caught.value.code, caught.value.data))
    with pytest.raises(rlm_wire.CallError, match="unimplemented"):
        async with peer.open(Swap()) as call:
            await call.result()
    if large:
        outcome.append(await peer.call(Work(6, 0.0, bytes(LARGE))))
    return outcome


def run(
    *fates: Fate, large: bool = False, private: bool = True
) -> tuple[list[object], dict[int, int], list[FatedStream]]:
    """The conversation over connections of these fates, and sound ones after them: outcome, executions, connections."""
    planned: Iterator[Fate] = iter(fates)

    async def main(rng: object) -> tuple[list[object], dict[int, int], list[FatedStream]]:
        model = Model()
        network = Network(lambda: next(planned, Fate()), private=private)
        token = None if private else "token"
        way = Way(network, "cut")
        ours = Ours(service(model), token, LIMITS, Patience(jitter=lambda: 0.5))
        with trio.fail_after(500):
            async with AsyncExitStack() as stack:
                stack.push_async_callback(network.close)
                await stack.enter_async_context(open_server(way, ours))
                peer = await stack.enter_async_context(open_client(way, ours))
                outcome = await converse(peer, large)
        model.check_all()
        return outcome, dict(model.begun), network.connections

    return run_seeded(0, main)


@pytest.fixture(scope="module", params=["private", "token"])
def uncut(request: pytest.FixtureRequest) -> tuple[bool, list[object], dict[int, int], FatedStream]:
    private = request.param == "private"
    outcome, begun, (connection,) = run(private=private)
    return private, outcome, begun, connection


def handshake_sizes(private: bool) -> tuple[int, int]:
    """Bytes that the client sends and receives before its session is open."""
    sizes: list[tuple[int, int]] = []

    async def main(rng: object) -> None:
        network = Network(Fate, private=private)
        ours = Ours(service(Model()), None if private else "token", LIMITS, Patience())
        async with open_server(Way(network, "cut"), ours), open_client(Way(network, "cut"), ours):
            (connection,) = network.connections
            sizes.append((connection.sent, connection.received))

    run_seeded(0, main)
    return sizes[0]


def test_a_cut_at_any_byte_that_is_sent_or_received_changes_nothing(
    uncut: tuple[bool, list[object], dict[int, int], FatedStream],
) -> None:
    """[R-7.3.10] [R-7.3.11]"""
    private, outcome, begun, connection = uncut
    sent, received = handshake_sizes(private)
    step = STEP if private else STEP * 7  # once open, sessions do not differ
    for at in range(sent, connection.sent, step):
        assert run(Fate(cut_sent=at), private=private)[:2] == (outcome, begun), f"cut after {at} bytes sent"
    for at in range(received, connection.received, step):
        assert run(Fate(cut_received=at), private=private)[:2] == (outcome, begun), f"cut after {at} bytes received"


def test_a_cut_at_any_byte_of_the_handshake_that_resumes_changes_nothing(
    uncut: tuple[bool, list[object], dict[int, int], FatedStream],
) -> None:
    """[R-7.3.8] [R-7.3.9]"""
    private, outcome, begun, connection = uncut
    first = Fate(cut_received=connection.received - 150, half_open=True)
    sound = run(first, private=private)
    assert sound[:2] == (outcome, begun)
    second = sound[2][1]
    for at in range(0, second.sent, STEP):
        assert run(first, Fate(cut_sent=at), private=private)[:2] == (outcome, begun), f"cut after {at} bytes sent"
    for at in range(0, second.received, STEP):
        assert run(first, Fate(cut_received=at), private=private)[:2] == (outcome, begun), f"cut after {at} received"


def test_a_cut_within_a_message_in_parts_changes_nothing() -> None:
    outcome, begun, (connection,) = run(large=True)
    for at in range(connection.sent - LARGE - 200, connection.sent, 1501):
        assert run(Fate(cut_sent=at), large=True)[:2] == (outcome, begun), f"cut after {at} bytes sent"
