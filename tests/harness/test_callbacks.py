"""What cells call: from every kind of code, under the scope of their cell, answered by worker and harness."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

import rlm_wire
from rlm_harness import AgentTools, Workspace, calling_agent, local_worker_url
from rlm_wire.errors import CallError, SessionLost
from rlm_wire.methods.kernels import Execute


class Add(rlm_wire.Request[int], tag="test.add"):
    x: int
    y: int


class Who(rlm_wire.Request[str], tag="test.who"):
    pass


class Refuse(rlm_wire.Request[None], tag="test.refuse"):
    pass


class Stall(rlm_wire.Request[str], tag="test.stall"):
    """Answered when the test says so; notes that it was stopped."""


class Stalled(rlm_wire.Request[None], tag="test.stalled"):
    """Answered when a Stall is there."""


class Stopped(rlm_wire.Request[None], tag="test.stopped"):
    """Answered when a Stall was stopped."""


class RunCell(rlm_wire.Request[str], tag="test.run_cell"):
    """Run a cell in that agent's kernel."""

    agent: str
    code: str


class World:
    """An embedding harness: its handlers, and what they have seen."""

    def __init__(self) -> None:
        self.service = rlm_wire.Service()
        self.agents: dict[str, AgentTools] = {}
        self.scopes: list[str | None] = []
        self.stalled = trio.Event()
        self.go = trio.Event()
        self.stopped = trio.Event()
        handle = self.service.handle
        handle(Add)(lambda request: request.x + request.y)
        handle(Who)(self.who)
        handle(Refuse)(self.refuse)
        handle(Stall)(self.stall)
        handle(Stalled)(self.wait_for_stall)
        handle(Stopped)(self.wait_for_stop)
        handle(RunCell)(self.run_cell)

    def who(self, request: Who, call: rlm_wire.IncomingCall[str, str]) -> str:
        self.scopes.append(call.scope)
        return calling_agent()

    async def refuse(self, request: Refuse) -> None:
        raise CallError("not_found", "no such thing", data={"why": 1})

    async def stall(self, request: Stall) -> str:
        self.stalled.set()
        try:
            await self.go.wait()
        finally:
            if not self.go.is_set():
                self.stopped.set()
        return calling_agent()

    async def wait_for_stall(self, request: Stalled) -> None:
        await self.stalled.wait()

    async def wait_for_stop(self, request: Stopped) -> None:
        await self.stopped.wait()

    async def run_cell(self, request: RunCell) -> str:
        result = await self.agents[request.agent].ipython(request.code, timeout=60)
        return f"{result.status} {result.result}"


@asynccontextmanager
async def opened(url: str, *names: str, token: str | None = None) -> AsyncIterator[World]:
    world = World()
    async with AsyncExitStack() as stack:
        workspace = await stack.enter_async_context(Workspace.connect(url, token, service=world.service))
        for name in names:
            world.agents[name] = await stack.enter_async_context(workspace.agent(name))
        yield world


@pytest.fixture
async def world(worker_url: str) -> AsyncIterator[World]:
    async with opened(worker_url, "one", "two") as world:
        yield world


async def value(agent: AgentTools, code: str) -> str:
    """What a cell that must succeed shows as its last expression, or prints."""
    result = await agent.ipython(code, timeout=60)
    assert result.status == "ok", (result.error, result.output.text, result.notices)
    return result.result or result.output.text


WAYS = {
    "plain": "rlm.call('test.add', x=1, y=2)",
    "top-level await": "await rlm.call('test.add', x=1, y=2)",
    "imported in a function": "def f():\n    import rlm\n    return rlm.call('test.add', x=1, y=2)\nf()",
    "gathered": "import asyncio\nsum(await asyncio.gather(*[rlm.call('test.add', x=0, y=n) for n in (0, 1, 2)]))",
    "a task": "import asyncio\nawait asyncio.create_task(rlm.call('test.add', x=1, y=2))",
    "asyncio.run": "import asyncio\nasync def f(): return await rlm.call('test.add', x=1, y=2)\nasyncio.run(f())",
    "trio.run": "import trio\nasync def f(): return await rlm.call('test.add', x=1, y=2)\ntrio.run(f)",
    "plain code in a coroutine": (
        "import asyncio\nawait asyncio.sleep(0)\ndef f(): return rlm.wait(rlm.call('test.add', x=1, y=2))\nf()"
    ),
    "wait in plain code": "rlm.wait(rlm.call('test.add', x=1, y=2))",
    "a thread": (
        "import threading\ndone = []\ndef f(): done.append(rlm.call('test.add', x=1, y=2))\n"
        "t = threading.Thread(target=f); t.start(); t.join(); done[0]"
    ),
    "a pool": (
        "from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "with Pool() as pool: x = pool.submit(rlm.call, 'test.add', x=1, y=2).result()\nx"
    ),
    "asyncio.to_thread": "import asyncio\nawait asyncio.to_thread(lambda: rlm.call('test.add', x=1, y=2))",
    "after %reset": "%reset -f\nrlm.call('test.add', x=1, y=2)",
}


async def test_every_kind_of_code_can_call(world: World) -> None:
    for way, code in WAYS.items():
        assert await value(world.agents["one"], code) == "3", way
    assert await value(world.agents["one"], "%who") == "Interactive namespace is empty.\n"


FAILURES = {
    "rlm.call('test.refuse')": ("not_found", "no such thing"),
    "rlm.call('test.nothing')": ("unimplemented", "test.nothing"),
    "rlm.call(None)": ("invalid_argument", "a string, not NoneType"),
    "rlm.call('test.add', x='1', y=2)": ("invalid_argument", "$.x"),
    "rlm.call('test.add', x=object(), y=2)": ("invalid_argument", "cannot be sent"),
    "rlm.call('test.add', x=b'x' * 17_000_000, y=2)": ("resource_exhausted", "the limit is 16777216"),
    "import sys; sys.setrecursionlimit(10**6)\nx = []\nfor _ in range(10**5): x = [x]\nrlm.call('test.add', x=x)": (
        "invalid_argument",
        "nested",
    ),
    "import os\nif not os.fork():\n    try: rlm.call('test.who')\n    except rlm.Error as error: print(error)\n"
    "    os._exit(0)\nos.wait()\nrlm.call('test.refuse')": ("not_found", "no such thing"),
}


async def test_a_failed_call_raises_an_error_that_says_how_and_where(world: World) -> None:
    """B44, B47: also where it is too large, or nested too deeply, to be sent."""
    for code, (word, text) in FAILURES.items():
        for await_ in ("", "await "):
            before, _, call = code.rpartition("\n")
            cell = await world.agents["one"].ipython(f"{before}\n{await_}{call}", timeout=60)
            assert cell.error is not None, code
            assert (cell.error.name, cell.error.message.partition(":")[0]) == ("Error", word)
            assert text in cell.error.message
            assert "inside/api" not in cell.error.traceback
    assert "forked" in cell.output.text
    assert await value(world.agents["one"], "try: rlm.call('test.refuse')\nexcept rlm.Error as e: x = e.data\nx") == (
        "{'why': 1}"
    )


async def test_each_call_carries_the_scope_of_the_cell_that_started_it_and_names_its_agent(world: World) -> None:
    one, two = world.agents["one"], world.agents["two"]
    both = "(rlm.call('test.who'), rlm.call('test.who'))"
    assert (await value(one, both), await value(two, both)) == ("('one', 'one')", "('two', 'two')")
    assert await value(one, "rlm.call('test.who')") == "'one'"
    first, again, other, more, last = world.scopes
    assert first == again
    assert other == more
    assert len({first, other, last}) == 3


LEFTOVERS = {
    "a background task": (
        "import asyncio\nasync def late():\n    await begin.wait()\n    return await rlm.call('test.who')\n"
        "begin = asyncio.Event()\nlater = asyncio.create_task(late())",
        "begin.set()\nawait later",
    ),
    "a thread": (
        "import threading\nfrom concurrent.futures import Future\nbegin, done = threading.Event(), Future()\n"
        "def late():\n    begin.wait()\n    try: done.set_result(rlm.call('test.who'))\n"
        "    except Exception as error: done.set_exception(error)\nthreading.Thread(target=late).start()",
        "begin.set()\ndone.result()",
    ),
}


async def test_what_a_cell_leaves_running_cannot_call_any_more_also_not_while_another_runs(world: World) -> None:
    for kind, (leave, use) in LEFTOVERS.items():
        await value(world.agents["one"], leave)
        cell = await world.agents["one"].ipython(use, timeout=60)
        assert cell.error is not None, kind
        assert "permission_denied" in cell.error.message
        assert "outside of an active cell" in cell.error.message
    assert world.scopes == []


async def test_what_still_waits_when_its_cell_ends_is_cancelled(world: World) -> None:
    await value(
        world.agents["one"],
        "import asyncio\nleft = asyncio.create_task(rlm.call('test.stall'))\nawait rlm.call('test.stalled')",
    )
    await world.stopped.wait()
    cell = await world.agents["one"].ipython("await left", timeout=60)
    assert cell.error is not None
    assert "has ended" in cell.error.message


FORGE = """
from rlm_wire.broker.scopes import current_scope
before = current_scope.set({scope!r})
try: {call}
finally: current_scope.reset(before)
"""


async def test_a_forged_scope_is_refused_by_worker_and_harness(world: World) -> None:
    one, two = world.agents["one"], world.agents["two"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(value, two, "rlm.call('test.who')\nrlm.call('test.stall')")
        await world.stalled.wait()
        for scope in (world.scopes[0], "made up", "", None):
            cell = await one.ipython(FORGE.format(scope=scope, call="rlm.call('test.who')"), timeout=60)
            assert cell.error is not None
            assert "permission_denied" in cell.error.message
        world.go.set()
    assert len(world.scopes) == 1
    unknown = Execute("one", "rlm.call('test.who')", 60, "not from this harness")
    cell = await one._peer.call(unknown)
    assert cell.error is not None
    assert "permission_denied" in cell.error.message


async def test_a_cell_can_wait_for_a_thousand_calls_and_is_told_when_there_are_too_many(world: World) -> None:
    code = """
import asyncio
calls = [asyncio.create_task(rlm.call("test.stall")) for _ in range(1100)]
done, waiting = set(), calls
while len(waiting) > 1024:
    more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    done |= more
{call.exception().code for call in done}, len(waiting)
"""
    assert await value(world.agents["one"], code) == "({'resource_exhausted'}, 1024)"
    large = "import asyncio\nawait asyncio.gather(*[rlm.call('test.stall', x=b'x' * 9_000_000) for _ in range(4)])"
    cell = await world.agents["one"].ipython(large, timeout=60)
    assert cell.error is not None
    assert "32 MiB" in cell.error.message


async def test_the_module_says_what_is_in_it(world: World) -> None:
    text = (await world.agents["one"].ipython("import rlm; print(rlm.__doc__)")).output.text
    assert "rlm.call(method, /, **params): Call any method" in text
    assert "rlm.history(): " in text
    assert "rlm.shell.run(command, *, cwd=None" in text


async def test_what_was_not_awaited_says_so(world: World) -> None:
    shown = await value(world.agents["one"], "import asyncio\nawait asyncio.sleep(0)\nrlm.call('test.who')")
    assert "coroutine object rlm.call" in shown
    assert "await" in shown


@pytest.mark.parametrize(
    "call", ["rlm.call('test.stall')", "await rlm.call('test.stall')", "rlm.wait(rlm.call('test.stall'))"]
)
async def test_b39_a_cancelled_cell_stops_waiting_at_once_and_cancels_its_call(world: World, call: str) -> None:
    one = world.agents["one"]
    await value(one, "kept = 1")
    async with one.open_ipython(f"import asyncio\n{call}") as running:
        await world.stalled.wait()
        running.cancel()
        cell = await running.result()
    assert cell.status == "interrupted"
    await world.stopped.wait()
    assert await value(one, "kept") == "1"


async def test_b39_an_interrupt_breaks_a_wait_at_once_and_cancels_its_call_while_the_cell_goes_on(world: World) -> None:
    one = world.agents["one"]
    code = "try: rlm.call('test.stall')\nexcept KeyboardInterrupt: rlm.call('test.stopped')\n'went on'"
    async with one.open_ipython(code) as running:
        await world.stalled.wait()
        assert await one.interrupt()
        cell = await running.result()
    assert (cell.status, cell.result) == ("ok", "'went on'")
    assert not await one.interrupt()


async def test_b39_a_cell_calls_back_a_hundred_times_and_from_four_threads(world: World) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
def work(n): return sum(rlm.call("test.add", x=n, y=1) for _ in range(100))
alone = work(0)
with ThreadPoolExecutor(4) as pool: sums = list(pool.map(work, range(4)))
alone, sums
"""
    assert await value(world.agents["one"], code) == "(100, [100, 200, 300, 400])"


async def test_b39_a_handler_can_run_a_cell_elsewhere_and_is_refused_in_the_kernel_that_waits_for_it(
    world: World,
) -> None:
    assert await value(world.agents["one"], "rlm.call('test.run_cell', agent='two', code='6 * 7')") == "'ok 42'"
    refused = "failed_precondition: the agent 'one' is running the cell"
    for code in ("6 * 7", "rlm.call('test.run_cell', agent='one', code='1')"):
        agent = "one" if code == "6 * 7" else "two"
        cell = await world.agents["one"].ipython(f"rlm.call('test.run_cell', agent={agent!r}, code={code!r})")
        if agent == "one":
            assert cell.error is not None
            assert cell.error.message.startswith(refused)
        else:
            assert cell.result == "'error None'"
    assert await value(world.agents["one"], "1") == "1"


@pytest.fixture(params=["stdio", "tcp"])
def away(request: pytest.FixtureRequest) -> Iterator[tuple[str, str | None]]:
    """URL and token of a worker of the test's own."""
    if request.param == "stdio":
        yield local_worker_url(), None
        return
    command = [sys.executable, "-m", "rlm_worker", "serve", "--tcp", "127.0.0.1:0"]
    environment = os.environ | {"RLM_TOKEN": "known-to-both"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        yield worker.stdout.readline().decode().removeprefix("listening on ").strip(), "known-to-both"
        worker.terminate()


async def test_b39_answers_errors_and_cancels_reach_the_cell_over_stdio_and_tcp(away: tuple[str, str | None]) -> None:
    async with opened(away[0], "one", token=away[1]) as world:
        one = world.agents["one"]
        assert await value(one, "sum(rlm.call('test.add', x=n, y=1) for n in range(100))") == "5050"
        cell = await one.ipython("rlm.call('test.refuse')")
        assert cell.error is not None
        assert cell.error.message == "not_found: no such thing"
        async with one.open_ipython("rlm.call('test.stall')") as running:
            await world.stalled.wait()
            running.cancel()
            assert (await running.result()).status == "interrupted"
        await world.stopped.wait()


async def test_b39_a_cell_whose_harness_goes_away_ends_with_it(worker_url: str) -> None:
    async with opened(worker_url, "one") as world:
        one = world.agents["one"]
        kernel = os.pidfd_open(int(await value(one, "import os; os.getpid()")))

        async def wait_for_ever() -> None:
            with pytest.raises(SessionLost):
                await one.ipython("rlm.call('test.stall')")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_ever)
            await world.stalled.wait()
            one._peer.lose(SessionLost("the cable was cut"))
    await trio.lowlevel.wait_readable(kernel)
    os.close(kernel)
