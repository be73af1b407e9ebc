"""`rlm_wire.asyncio`: calls from an asyncio loop, many at once, cancelled, and after the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager

import pytest
from facade_server import (
    TOKEN,
    Add,
    AskBack,
    Collect,
    Count,
    FacadeServer,
    HangUp,
    Name,
    Refuse,
    ScopeOf,
    Wait,
    facade_server,
)

import rlm_wire
import rlm_wire.asyncio

LIMIT = 60.0


@pytest.fixture
def server() -> Iterator[FacadeServer]:
    with facade_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "rlm_wire"]


def connect(
    server: FacadeServer, service: rlm_wire.Service | None = None
) -> AbstractAsyncContextManager[rlm_wire.asyncio.Peer]:
    return rlm_wire.asyncio.connect(server.url.result(), service, TOKEN)


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run `main` in a loop of its own, in debug mode: that complains of what is never awaited or blocks for long."""

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT):
            await main()

    asyncio.run(bounded(), debug=True)


async def next_event(server: FacadeServer) -> str:
    return await asyncio.to_thread(server.next_event)


def test_calls_give_results_errors_and_items(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer:
            assert await peer.call(Add(1, 2), timeout=30) == 3
            assert await peer.ping() > 0
            assert peer.info.features == ["facade"]
            with pytest.raises(rlm_wire.CallError, match="not today"):
                await peer.call(Refuse("not today"))
            async with peer.open(Count(upto=5)) as call:
                assert [item async for item in call] == [1, 2, 3, 4, 5]
                assert await call.result() == 5
            async with peer.open(Collect()) as collect:
                await collect.send(1)
                assert await anext(collect) == 1
                await collect.close_sending()
                assert await collect.result() == [1]
        assert peer.closed

    run(main)


def test_many_calls_at_once(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer:
            sums = await asyncio.gather(*(peer.call(Add(n, n)) for n in range(500)))
            assert sums == [2 * n for n in range(500)]

    run(main)


def test_a_cancelled_call_gives_what_it_had(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer, peer.open(Count(upto=2, linger=True)) as call:
            assert [await anext(call), await anext(call)] == [1, 2]
            call.cancel("enough")
            assert await call.result() == 2

    run(main)


def test_cancelling_a_task_stops_its_call_at_the_peer_before_the_task_ends(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer:
            task = asyncio.create_task(peer.call(Wait()))
            assert await next_event(server) == "waiting"
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert server.events.get_nowait() == "stopped"
            assert await peer.call(Add(1, 2)) == 3

    run(main)


def test_cancelling_a_task_more_than_once_changes_nothing(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer:
            task = asyncio.create_task(peer.call(Wait()))
            assert await next_event(server) == "waiting"
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert server.events.get_nowait() == "stopped"

    run(main)


def test_a_timeout_of_asyncio_stops_the_call_and_is_a_timeout(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer:
            with pytest.raises(TimeoutError):  # noqa: PT012
                async with asyncio.timeout(LIMIT) as timeout:
                    waiting = asyncio.ensure_future(next_event(server))
                    waiting.add_done_callback(lambda _: timeout.reschedule(0))
                    await peer.call(Wait())
            assert waiting.result() == "waiting"
            assert server.events.get_nowait() == "stopped"

    run(main)


def test_a_task_group_that_fails_stops_the_calls_of_its_tasks(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer:
            with pytest.raises(ExceptionGroup):  # noqa: PT012
                async with asyncio.TaskGroup() as group:
                    group.create_task(peer.call(Wait()))
                    assert await next_event(server) == "waiting"
                    group.create_task(peer.call(Refuse("all of it")))
            assert server.events.get_nowait() == "stopped"

    run(main)


def test_a_wait_for_an_item_that_is_cancelled_loses_none(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer, peer.open(Collect()) as call:
            received: list[int] = []
            for n in range(100):
                waiting = asyncio.ensure_future(anext(call))
                await asyncio.sleep(0)
                await call.send(n)
                waiting.cancel()
                await asyncio.wait([waiting])
                if not waiting.cancelled():
                    received.append(waiting.result())
            await call.close_sending()
            received += [item async for item in call]
            assert received == list(range(100))

    run(main)


def test_cancelling_the_wait_for_a_result_leaves_the_call_alone(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer, peer.open(Collect()) as call:
            waiting = asyncio.ensure_future(call.result())
            await call.send(1)
            assert await anext(call) == 1
            waiting.cancel()
            await asyncio.wait([waiting])
            await call.close_sending()
            assert await call.result() == [1]

    run(main)


def test_a_service_of_the_client_answers_from_the_trio_thread(server: FacadeServer) -> None:
    service = rlm_wire.Service()

    @service.handle(Name)
    async def name(request: Name, call: rlm_wire.IncomingCall[None, None]) -> str:
        import trio

        await trio.lowlevel.checkpoint()
        return f"{await call.peer.call(Add(3, 4))} in {threading.current_thread().name}"

    async def main() -> None:
        async with connect(server, service) as peer:
            assert await peer.call(AskBack()) == "you are 7 in rlm_wire"

    run(main)


def test_each_task_calls_in_its_own_scope(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer:

            async def in_scope(scope: str) -> str | None:
                rlm_wire.current_scope.set(scope)
                return await peer.call(ScopeOf())

            assert await asyncio.gather(in_scope("a"), in_scope("b")) == ["a", "b"]
            assert await peer.call(ScopeOf()) is None

    run(main)


def test_leaving_the_block_fails_the_calls_of_other_tasks(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer:
            waiting = asyncio.create_task(peer.call(Wait()))
            assert await next_event(server) == "waiting"
        with pytest.raises(rlm_wire.SessionLost, match="closed here"):
            await waiting
        with pytest.raises(rlm_wire.SessionLost, match="has been left"):
            await peer.call(Add(1, 2))

    run(main)


def test_a_session_lost_is_told_to_those_who_wait(server: FacadeServer) -> None:
    async def main() -> None:
        async with connect(server) as peer:
            with pytest.raises(rlm_wire.SessionLost):
                await peer.call(HangUp())
            await peer.wait_closed()

    run(main)


def test_errors_of_connecting_are_raised_as_they_are(server: FacadeServer) -> None:
    async def main() -> None:
        with pytest.raises(rlm_wire.AuthenticationError):
            async with rlm_wire.asyncio.connect(server.url.result(), token="wrong"):
                pytest.fail("entered")

    run(main)


def test_a_cancelled_connect_closes_its_stream_and_ends_its_thread() -> None:
    async def main() -> None:
        seen = asyncio.Event()
        closed = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(8)
            seen.set()
            while await reader.read(1000):
                pass
            closed.set()
            writer.close()

        async def attempt(url: str) -> None:
            async with rlm_wire.asyncio.connect(url, token="x"):
                pytest.fail("entered")

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as listener:
            host, port = listener.sockets[0].getsockname()
            attempting = asyncio.create_task(attempt(f"tcp://{host}:{port}"))
            await seen.wait()
            attempting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempting
            await closed.wait()

    run(main)


def test_a_cancelled_body_closes_the_session(server: FacadeServer) -> None:
    async def main() -> None:
        peers = []
        entered = asyncio.Event()

        async def body() -> None:
            async with connect(server) as peer, peer.open(Count(upto=0, linger=True)):
                peers.append(peer)
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(body())
        await entered.wait()
        assert await next_event(server) == "lingering"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert peers[0].closed
        assert server.events.get_nowait() == "counted"

    run(main)


def test_a_program_that_is_interrupted_stops_its_calls(server: FacadeServer) -> None:
    import os
    import signal
    from pathlib import Path

    script = """
import asyncio, sys, rlm_wire.asyncio
from facade_server import *
async def main():
    async with rlm_wire.asyncio.connect(sys.argv[1], token=TOKEN) as peer:
        await peer.call(Wait())
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""
    tests = Path(__file__).parent
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, server.url.result()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert server.next_event() == "waiting"
        program.send_signal(signal.SIGINT)
        assert server.next_event() == "stopped"
        assert program.communicate(timeout=60) == ("interrupted\n", "")
