"""The wire over TCP, but nothing is kept to be sent again, acknowledged or pinged: `tcp` is slower by what they cost.

What stays is counting itself, two additions a frame. No program can have this; only here is our own code replaced.
"""

from __future__ import annotations

from typing import Any

import trio

from bench.subjects import wire
from rlm_wire.broker import line
from rlm_wire.frames import connection
from rlm_wire.frames.codec import Buffer
from rlm_wire.frames.replay import ReplayBuffer


class _Forgetful(ReplayBuffer):
    def has_room(self, size: int) -> bool:
        return True

    def keep(self, size: int, *pieces: Buffer) -> None:
        pass


async def _never(*_: object) -> None:
    await trio.sleep_forever()


def _strip() -> None:
    core: Any = connection
    core.ReplayBuffer = _Forgetful
    core.Connection._acknowledge = lambda self: None  # noqa: SLF001
    links: Any = line
    links.keep_alive = _never


def serve(name: str) -> None:
    _strip()
    wire.serve("tcp")


def drive(name: str) -> None:
    _strip()
    wire.drive(name)
