"""`rlm.history()`: the ledger as the cell found it, sent to each worker once, and fetched by each kernel once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import rlm_wire
from rlm_harness import AgentTools, Ledger, LedgerSource, Workspace, create_ledger
from rlm_harness.ledger import records
from rlm_wire.errors import CallError
from rlm_wire.methods.ledger import LedgerChunk, ReplicateLedger


class Grown:
    """A large ledger that is not in memory: counts what is read of it, and can be held back."""

    def __init__(self, messages: int) -> None:
        content = "é" * 500_000
        self.lines = [b'{"type":"context_window","window":0,"message_indices":[]}\n']
        for index in range(messages):
            record = {"type": "user", "message_index": index, "window": 0, "message": {"content": content}}
            self.lines.append(json.dumps(record).encode() + b"\n")
        self.data = b"".join(self.lines)
        self.size = len(self.data)
        self.read_bytes = 0
        self.released = trio.Event()
        self.released.set()
        self._grown = trio.Event()

    async def read(self, start: int, limit: int) -> bytes:
        await self.released.wait()
        chunk = self.data[start : start + limit]
        self.read_bytes += len(chunk)
        return chunk

    async def wait_beyond(self, size: int) -> None:
        while self.size <= size:
            await self._grown.wait()

    def add(self, line: bytes) -> None:
        self.data += line
        self.size += len(line)
        self._grown.set()
        self._grown = trio.Event()


@asynccontextmanager
async def agent_with(
    url: str, ledger: LedgerSource | None, trace: rlm_wire.Trace | None = None
) -> AsyncIterator[AgentTools]:
    async with Workspace.connect(url, trace=trace) as workspace, workspace.agent(ledger=ledger) as agent:
        yield agent


async def value(agent: AgentTools, code: str) -> str | None:
    result = await agent.ipython(code, timeout=60)
    assert result.status == "ok", (result.error, result.output.text)
    return result.result


def user(text: str) -> records.User:
    return records.User(turn=0, message={"role": "user", "content": text})


async def conversation(ledger: Ledger) -> None:
    await ledger.append(records.System(message={"role": "system", "content": "be good"}))
    await ledger.append(user("first"))
    whole = records.ToolResult(turn=1, tool="bash", duration=0.1, message={"role": "tool", "content": "long"})
    await ledger.append(whole, in_context=False)
    cut = records.ContextMessage(message={"role": "tool", "content": "l…"}, source_message_index=2)
    await ledger.append(cut)
    await ledger.open_window("rollback", [0])
    await ledger.append(user("second"))


async def test_a_cell_sees_events_messages_windows_and_what_the_user_asked(worker_url: str, tmp_path: Path) -> None:
    async with create_ledger(tmp_path) as ledger, agent_with(worker_url, ledger) as agent:
        await conversation(ledger)
        assert await value(agent, "h = rlm.history(); h") == "<history of 7 events, 5 messages, 2 windows>"
        assert await value(agent, "[m['content'] for m in h.messages]") == (
            "['be good', 'first', 'long', 'l…', 'second']"
        )
        assert await value(agent, "[[m['content'] for m in w.messages] for w in h.windows]") == (
            "[['be good', 'first', 'l…'], ['be good', 'second']]"
        )
        assert await value(agent, "[r['message']['content'] for r in h.user_messages()]") == "['first', 'second']"
        assert await value(agent, "h.events[-1]['type'], h.events[0]['reason'], len(h.messages[1:3])") == (
            "('user', 'start', 2)"
        )
        await ledger.append(user("third"))
        newer = "n = await rlm.history(); len(h.messages), len(n.messages), n.messages[-1]['content']"
        assert await value(agent, newer) == "(5, 6, 'third')"
        assert await value(agent, "import asyncio; len({len((await asyncio.to_thread(rlm.history)).events)})") == "1"


async def test_a_large_ledger_is_sent_once_and_costs_later_cells_nothing(worker_url: str) -> None:
    ledger = Grown(20)
    sizes: list[int] = []

    def record(frame: dict[str, Any]) -> None:
        sizes.append(frame.get("size", 0))

    async with agent_with(worker_url, ledger, rlm_wire.Trace(record)) as agent:
        assert await value(agent, "len(rlm.history().messages)") == "20"
        assert ledger.read_bytes == ledger.size > 20_000_000
        assert ledger.size < sum(sizes) < ledger.size * 1.01

        sizes.clear()
        assert await value(agent, "len(rlm.history().messages)") == "20"
        assert await value(agent, "1") == "1"
        assert sum(sizes) < 2000

        sizes.clear()
        ledger.add(b'{"type":"done"}\n')
        assert await value(agent, "len(rlm.history().events)") == "22"
        assert sum(sizes) < 2000
        await agent.ipython("import os; os._exit(1)")
        assert await value(agent, "len(rlm.history().events)") == "22"
        assert ledger.read_bytes == ledger.size

    async with agent_with(worker_url, ledger) as agent:
        assert await value(agent, "len(rlm.history().events)") == "22"
    assert ledger.read_bytes == 2 * ledger.size


async def test_what_the_kernel_has_read_it_does_not_ask_for_again(worker_url: str) -> None:
    """Between cells no call is answered: a leftover thread sees what its kernel has, and no error."""
    leave = """
import threading
from concurrent.futures import Future
begin, done = threading.Event(), Future()
def late():
    begin.wait()
    try: done.set_result(len(rlm.history().events))
    except rlm.Error as error: done.set_result(error.code)
threading.Thread(target=late).start()
len(rlm.history().events)
"""
    ledger = Grown(1)
    async with agent_with(worker_url, ledger) as agent:
        assert await value(agent, leave) == "2"
        assert await value(agent, "begin.set(); done.result()") == "2"
        assert await value(agent, leave) == "2"
        ledger.add(b'{"type":"done"}\n')
        assert await value(agent, "begin.set(); done.result()") == "'permission_denied'"


async def test_a_cell_waits_for_the_part_of_the_ledger_that_it_was_promised(worker_url: str) -> None:
    ledger = Grown(1)
    ledger.released = trio.Event()
    async with agent_with(worker_url, ledger) as agent:
        assert await value(agent, "'needs no history'") == "'needs no history'"
        async with trio.open_nursery() as nursery, agent.open_ipython("len(rlm.history().events)", timeout=60) as cell:
            nursery.start_soon(trio.testing.wait_all_tasks_blocked, 0.1)
            ledger.released.set()
            assert (await cell.result()).result == "2"


class Clumsy(Grown):
    """Sends a chunk that is too large, once."""

    async def read(self, start: int, limit: int) -> bytes:
        return await super().read(start, limit if self.read_bytes else 2 << 20)


async def test_a_refused_replication_is_tried_again_when_there_is_more(worker_url: str) -> None:
    ledger = Clumsy(4)
    async with agent_with(worker_url, ledger) as agent:
        assert agent.replication is not None
        while agent.replication.problem is None:
            await trio.lowlevel.checkpoint()
        assert agent.replication.problem.code == "invalid_argument"
        ledger.add(b'{"type":"done"}\n')
        assert await value(agent, "len(rlm.history().events)") == "6"
        assert (agent.replication.acknowledged, agent.replication.problem) == (ledger.size, None)


async def test_a_replication_goes_on_where_the_worker_is(worker_url: str) -> None:
    async with Workspace.connect(worker_url) as workspace, workspace.agent("a"):
        for size, start in ((0, 0), (3, 3), (6, 9)):
            async with workspace.peer.open(ReplicateLedger("a")) as call:
                assert (await anext(aiter(call))).size == size
                await call.send(LedgerChunk(start, b"abc"))
                if start <= size:
                    assert (await anext(aiter(call))).size == size + 3
                    continue
                with pytest.raises(CallError, match="6 bytes"):
                    await call.result()


BROKEN = {
    "no JSON": b"{\n",
    "messages": b'{"type":"user","message_index":1,"message":{}}\n',
    "windows": b'{"type":"context_window","window":5}\n',
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_damaged_ledger_is_named_as_such_each_time(worker_url: str, kind: str) -> None:
    ledger = Grown(0)
    ledger.add(BROKEN[kind])
    async with agent_with(worker_url, ledger) as agent:
        for _ in range(2):
            cell = await agent.ipython("rlm.history()")
            assert cell.error is not None
            assert "line 2 of the ledger is damaged" in cell.error.message


async def test_without_a_ledger_history_says_so(worker_url: str) -> None:
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(agent_with(worker_url, None))
        cell = await agent.ipython("rlm.history()")
        assert cell.error is not None
        assert "unimplemented" in cell.error.message
