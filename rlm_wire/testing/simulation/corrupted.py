"""Seeds of another kind: a few bytes come twice, as no sound transport has it. Nothing can be promised to be delivered
then; but nothing is done twice, nobody waits for ever, and what is said of lost calls is true.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.broker.peer import Peer
from rlm_wire.errors import SessionLost
from rlm_wire.testing.simulation.network import Fate
from rlm_wire.testing.simulation.run import VIRTUAL_LIMIT, joined
from rlm_wire.testing.simulation.scheduling import run_seeded
from rlm_wire.testing.simulation.world import Caller, Model

_CALLERS = 4
_STEPS = 4
_SHORTEST_FRAME = 7
"""Fewer bytes than this are no frame: a whole one that came twice could not be told from two."""


def simulate_corruption(seed: int) -> int:
    """Run two peers whose connections repeat bytes, and return how many calls were lost or garbled."""
    return run_seeded(seed, _simulate)


async def _simulate(rng: random.Random) -> int:
    model = Model()
    lost = 0
    tasks_before = trio.lowlevel.current_statistics().tasks_living

    async def call(peer: Peer, seed: float) -> None:
        nonlocal lost
        caller = Caller(model, peer, random.Random(seed))  # noqa: S311
        for _ in range(_STEPS):
            number = model.number()
            try:
                with one_error():
                    await caller.step(number)
            except SessionLost as error:
                lost += 1
                model.check_lost(number, error.fate)
            except AssertionError:  # a value was garbled: that `check_all` has nothing to say is what counts
                lost += 1

    with trio.fail_after(VIRTUAL_LIMIT):
        async with (
            joined(model, model.service(), model.service(), rng, _fates(rng)) as (peer, _),
            trio.open_nursery() as nursery,
        ):
            for _ in range(_CALLERS):
                nursery.start_soon(call, peer, rng.random())
    model.check_all()
    assert trio.lowlevel.current_statistics().tasks_living == tasks_before, "tasks are left"
    return lost


def _fates(rng: random.Random) -> Callable[[], Fate]:
    made = 0

    def plan() -> Fate:
        nonlocal made
        made += 1
        if made > 2:
            return Fate()
        return Fate(
            doubled_sent=int(10 ** rng.uniform(0, 5)) if rng.random() < 0.5 else None,
            doubled_received=int(10 ** rng.uniform(0, 5)),
            doubled=rng.randrange(1, _SHORTEST_FRAME),
            piece=rng.choice((1 << 20, 300)),
        )

    return plan
