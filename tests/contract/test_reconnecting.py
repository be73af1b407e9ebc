"""Sessions over real connections that are cut and go silent: every call is executed once, and answered."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from contract.calculator import Add, Blobs, Count, Echo, Marks, Swap, Wait
from contract.conftest import open_endpoint
from contract.proxy import proxied

import rlm_wire

KINDS = ["tcp", "tls", "unix"]


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_lost_or_done_twice_while_connections_are_cut(kind: str, tmp_path: Path) -> None:
    rng = random.Random(kind)
    async with (
        open_endpoint(kind, tmp_path) as endpoint,
        proxied(endpoint.url, tmp_path) as proxy,
        rlm_wire.connect(proxy.url, token=endpoint.token) as peer,
    ):
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(_work, peer, number)
            for _ in range(8):
                before = proxy.made
                for _ in range(rng.randrange(30)):
                    await trio.lowlevel.checkpoint()
                proxy.cut()
                while proxy.made == before:
                    await peer.call(Add(1, 2))
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(peer.call, Wait(str(number)))
            while len(await peer.call(Marks())) < 20:
                proxy.cut()
            nursery.cancel_scope.cancel()
        marks = await peer.call(Marks())
        assert sorted(marks) == sorted(f"{number} {what}" for number in range(20) for what in ("started", "stopped"))


async def _work(peer: rlm_wire.Peer, number: int) -> None:
    for step in range(10):
        assert await peer.call(Add(number, step)) == number + step
    data = bytes([number]) * 100_000
    assert await peer.call(Echo(data)) == data
    async with peer.open(Swap()) as swap:
        for step in range(10):
            await swap.send(f"item {step}")
            assert await anext(swap) == f"ITEM {step}"
        await swap.close_sending()
        assert await swap.result() == 10
    async with peer.open(Count(500)) as count:
        assert [item async for item in count] == list(range(500))
    async with peer.open(Blobs(20, 50_000)) as blobs:
        assert [len(blob) async for blob in blobs] == [50_000] * 20


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_that_goes_silent_is_replaced(kind: str, tmp_path: Path) -> None:
    patience = rlm_wire.Patience(idle=0.2)
    async with (
        open_endpoint(kind, tmp_path) as endpoint,
        proxied(endpoint.url, tmp_path) as proxy,
        rlm_wire.connect(proxy.url, token=endpoint.token, patience=patience) as peer,
    ):
        proxy.silence()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_added, peer)
            assert await peer.wait_state("reconnecting") == "reconnecting"
            assert "nothing was heard from the peer" in peer.interruption
            proxy.speak()
        assert peer.state == "connected"


async def _added(peer: rlm_wire.Peer) -> None:
    assert await peer.call(Add(1, 2)) == 3
