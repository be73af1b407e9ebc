"""Lines with a limit: one that is too long is told of at once, kept by nobody, and costs no other."""

from __future__ import annotations

from contextlib import aclosing

import pytest
import trio
import trio.testing

from rlm_harness.lines import Lines, LineTooLong
from rlm_wire.transports.memory import memory_pair


async def test_a_line_is_too_long_before_its_end_has_come() -> None:
    ours, theirs = memory_pair()
    lines = Lines(ours, limit=10)
    async with aclosing(ours), aclosing(theirs):
        await theirs.send([b"0123456789\nmore than ten"])
        assert await lines.next() == b"0123456789"
        with pytest.raises(LineTooLong):
            await lines.next()
        for _ in range(3):  # while its rest is skipped, who waits may change his mind
            await theirs.send([b"the rest"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lines.next)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        await theirs.send([b", at last\nshort\nno end"])
        assert await lines.next() == b"short"
        await theirs.aclose()
        assert await lines.next() is None


async def test_a_line_that_is_too_long_and_complete_is_one_error() -> None:
    ours, theirs = memory_pair()
    lines = Lines(ours, limit=10)
    async with aclosing(ours), aclosing(theirs):
        await theirs.send([b"more than ten\nshort\n"])
        with pytest.raises(LineTooLong):
            await lines.next()
        assert await lines.next() == b"short"


async def test_others_get_their_turn_between_lines_that_came_together() -> None:
    ours, theirs = memory_pair()
    lines = Lines(ours, limit=10)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with aclosing(ours), aclosing(theirs), trio.open_nursery() as nursery:
        await theirs.send([b"y\n" * 100])
        nursery.start_soon(take_turns)
        for _ in range(100):
            assert await lines.next() == b"y"
        assert turns >= 98  # in which order two tasks take one turn is left to chance
        nursery.cancel_scope.cancel()
