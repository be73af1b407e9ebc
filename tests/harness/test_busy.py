"""While one agent's cell is busy, everything else goes on; and a cell that tells more than anybody reads still ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import rlm_wire
from rlm_harness import Workspace
from rlm_wire.errors import CallError


class Note(rlm_wire.Request[int], tag="test.note"):
    """Handled by a call in return: a command in the agent's workspace."""


@pytest.fixture
async def workspace(worker_url: str) -> AsyncIterator[Workspace]:
    service = rlm_wire.Service()
    async with Workspace.connect(worker_url, service=service) as workspace:

        @service.handle(Note)
        async def note(request: Note) -> int:
            async with workspace.agent() as other:
                return len((await other.bash("echo noted")).output.text)

        yield workspace


BUSY = {
    "asleep": ("import time\ntime.sleep(3600)", "interrupted", True),
    "holding the interpreter": ("sum(range(10**12))", "interrupted", False),
}


@pytest.mark.parametrize("kind", BUSY)
async def test_b51_a_busy_cell_holds_up_nobody_else_and_is_cancelled_at_once(workspace: Workspace, kind: str) -> None:
    code, status, answers = BUSY[kind]
    async with workspace.agent("a") as a, workspace.agent("b") as b:
        assert (await a.ipython("x = 1")).status == "ok"
        async with a.open_ipython(f"print('begun')\n{code}") as cell:
            assert (await anext(aiter(cell))).data == b"begun\n"
            assert await workspace.peer.ping() < 10
            assert (await b.bash("echo hi")).output.text == "hi\n"
            assert (await b.ipython("6 * 7", timeout=60)).result == "42"
            if answers:
                assert [variable.name for variable in (await a.inspect()).variables] == ["x", "time"]
                assert await a.interrupt()
            else:
                with pytest.raises(CallError, match="busy in C code"):
                    await a.inspect()
                cell.cancel()
            result = await cell.result()
        assert result.status == status
        assert result.output.text == "begun\n"


async def test_b45_a_flood_of_output_and_callbacks_ends_with_the_result(workspace: Workspace) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool:
    notes = [pool.submit(rlm.call, "test.note") for _ in range(8)]
    for n in range(10_000): print(n, flush=True)
    total = sum(note.result() for note in notes)
total
"""
    seen = 0

    async def watch(text: str) -> None:  # makes a call itself, for each piece of output
        nonlocal seen
        seen += text.count("\n")
        await workspace.peer.ping()

    async with workspace.agent() as agent:
        result = await agent.ipython(code, timeout=120, on_output=watch)
    assert (result.status, result.result) == ("ok", str(8 * len("noted\n")))
    assert seen == result.output.lines == 10_000
