"""What a person is told of a connection that breaks and comes back."""

from __future__ import annotations

import trio
from contract import calculator
from contract.calculator import Add
from trio.testing import MockClock

from rlm_harness.connection import connection_told
from rlm_harness.display import TerminalView
from rlm_harness.events import Event, Reconnected, Reconnecting
from rlm_wire.broker.patience import Patience
from rlm_wire.broker.services import Service
from rlm_wire.endpoints.client import open_client
from rlm_wire.endpoints.meeting import Ours, Way
from rlm_wire.endpoints.server import open_server
from rlm_wire.frames.limits import Limits
from rlm_wire.testing.simulation import Fate, Network


async def test_a_broken_connection_is_one_line_and_its_return_another(autojump_clock: MockClock) -> None:
    told: list[Event] = []

    async def emit(event: Event) -> None:
        told.append(event)

    fates = [Fate(), Fate(refused=True)]
    network = Network(lambda: fates.pop(0) if fates else Fate())
    way = Way(network, "harness")
    async with (
        open_server(way, Ours(calculator.service, None, Limits(), Patience())),
        open_client(way, Ours(Service(), None, Limits(), Patience())) as peer,
        connection_told(peer, emit),
    ):
        await peer.call(Add(1, 2))
        assert told == []
        await network.connections[-1].cut()
        await peer.call(Add(1, 2))
        await trio.testing.wait_all_tasks_blocked()
    assert [type(event) for event in told] == [Reconnecting, Reconnected]
    shown = "".join(TerminalView(colour=False).render(event) for event in told)
    assert shown.count("\n") == 2
    assert "was cut" in shown
