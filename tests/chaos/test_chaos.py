"""Real processes under load, while whatever can break does: at the end everything is accounted for, and nothing left.

`make chaos SEEDS=50` runs as many as asked; the suite runs one.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from chaos.load import Load
from chaos.workers import TOKEN, relay_url, relays, running_worker
from contract.proxy import proxied

from rlm_harness.workspace import Workspace
from rlm_wire.broker.patience import Patience

SEEDS = range(int(os.environ.get("RLM_CHAOS_SEEDS", "1")))
QUICK = Patience(idle=0.5, first_pause=0.02, longest_pause=0.2)


@pytest.mark.parametrize("seed", SEEDS)
async def test_connections_that_are_cut_at_random(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    load = Load(tmp_path, agents=4, calls=50, jobs=5, cells=10)
    async with (
        running_worker(tmp_path, "--tcp", "127.0.0.1:0") as worker,
        proxied(worker.url, tmp_path, lambda: int(10 ** rng.uniform(2.5, 4.2))) as proxy,
        Workspace.connect(proxy.url, TOKEN, service=load.service, patience=QUICK) as workspace,
    ):
        await load.run(workspace)
        assert proxy.made > 3
        receipt = await workspace.close()
    load.check()
    assert set(load.outcomes.values()) == {"ok"}
    assert (receipt.confirmed, receipt.remaining, receipt.unknown) == (True, [], [])


@pytest.mark.parametrize("seed", SEEDS)
async def test_relays_that_are_killed_and_processes_that_are_stopped(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    load = Load(tmp_path, agents=4, calls=50, jobs=5, cells=10)
    socket = tmp_path / "socket"
    async with (
        running_worker(tmp_path, "--unix", str(socket)) as worker,
        Workspace.connect(relay_url(socket), service=load.service, patience=QUICK) as workspace,
    ):

        async def kill_relay() -> None:
            os.kill(relays(socket)[0], signal.SIGKILL)
            await workspace.peer.wait_state("reconnecting")
            await workspace.peer.wait_state("connected")

        async def stop_relay() -> None:
            os.kill(relays(socket)[0], signal.SIGSTOP)
            await workspace.peer.wait_state("reconnecting")
            await workspace.peer.wait_state("connected")

        async def stop_worker() -> None:
            worker.stop()
            await trio.sleep(rng.uniform(0, 0.5))
            worker.go_on()

        faults: list[Callable[[], Awaitable[None]]] = [kill_relay, kill_relay, stop_relay, stop_worker, stop_worker]
        rng.shuffle(faults)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run, workspace)
            for fault in faults:
                await load.wait_progress(rng.randrange(1, 40))
                await fault()
        receipt = await workspace.close()
    load.check()
    assert set(load.outcomes.values()) == {"ok"}
    assert (receipt.confirmed, receipt.remaining, receipt.unknown) == (True, [], [])
    assert relays(socket) == []


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_worker_that_is_killed_and_replaced_under_load(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    lost, after = (Load(tmp_path / name, agents=4, calls=50, jobs=5, cells=10) for name in ("lost", "after"))
    (tmp_path / "lost").mkdir()
    (tmp_path / "after").mkdir()
    async with running_worker(tmp_path, "--unix", str(tmp_path / "socket")) as worker:
        async with (
            Workspace.connect(worker.url, cwd="lost", service=lost.service, patience=QUICK) as workspace,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(lost.run, workspace)
            await lost.wait_progress(rng.randrange(1, 100))
            await worker.end(rng.choice([signal.SIGKILL, signal.SIGTERM]))
            await worker.start()
        assert workspace.lost is not None
        async with Workspace.connect(worker.url, cwd="after", service=after.service) as workspace:
            await after.run(workspace)
            receipt = await workspace.close()
    lost.check()
    assert "ok" in lost.outcomes.values()
    assert len(set(lost.outcomes.values())) > 1
    after.check()
    assert set(after.outcomes.values()) == {"ok"}
    assert (receipt.confirmed, receipt.remaining, receipt.unknown) == (True, [], [])
