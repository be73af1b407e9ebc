"""Field report B29: what was answered arrives whole although its sender ends at once, or it does not count."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio
from chaos.workers import TOKEN, running_worker
from contract.calculator import Echo
from contract.proxy import proxied

import rlm_wire
from rlm_harness.workspace import Workspace
from rlm_wire.errors import SessionLost
from rlm_wire.frames.limits import Limits

LARGE = b"x" * 5_000_000

SHOWS_LARGE = """
from IPython.display import Image, display
display(Image(data=bytes.fromhex("89504e470d0a1a0a") + bytes(5_000_000), format="png"))
"""


@pytest.mark.parametrize("scheme", ["tcp", "tls", "unix"])
async def test_b29_a_large_answer_that_is_followed_by_the_end_arrives_whole(scheme: str, tmp_path: Path) -> None:
    service = rlm_wire.Service()
    end = trio.Event()

    @service.handle(Echo)
    def echo(request: Echo) -> bytes:
        end.set()
        return request.data

    async def serve(task_status: trio.TaskStatus[str]) -> None:
        url = f"unix:{tmp_path}/socket" if scheme == "unix" else f"{scheme}://127.0.0.1:0"
        async with rlm_wire.serve(url, service, TOKEN) as server:
            task_status.started(server.urls[0])
            await end.wait()
        ended.set()

    async def speak_late() -> None:
        await end.wait()
        await proxy.held.wait()
        await trio.testing.wait_all_tasks_blocked()
        proxy.speak()

    ended = trio.Event()
    async with (
        trio.open_nursery() as nursery,
        proxied(await nursery.start(serve), tmp_path) as proxy,
        rlm_wire.connect(proxy.url, token=TOKEN) as peer,
    ):
        proxy.silence("to client")
        nursery.start_soon(speak_late)
        assert await peer.call(Echo(LARGE)) == LARGE
        await peer.wait_closed()
        await ended.wait()


async def test_b29_a_worker_that_is_terminated_still_delivers_what_it_has_answered(tmp_path: Path) -> None:
    async with (
        running_worker(tmp_path, "--tcp", "127.0.0.1:0") as worker,
        proxied(worker.url, tmp_path) as proxy,
        Workspace.connect(proxy.url, TOKEN) as workspace,
        workspace.agent() as agent,
        trio.open_nursery() as nursery,
    ):

        async def terminate() -> None:
            await proxy.held.wait()  # so the answer is on its way
            nursery.start_soon(worker.end, signal.SIGTERM)
            await trio.testing.wait_all_tasks_blocked(0.1)
            proxy.speak()

        await agent.ipython("1")
        proxy.silence("to client")
        nursery.start_soon(terminate)
        cell = await agent.ipython(SHOWS_LARGE)
        assert len(cell.displays[0].data["image/png"]) == 8 + len(LARGE)
        await workspace.peer.wait_closed()


async def test_b29_an_answer_that_is_cut_off_is_a_lost_connection_and_no_answer(tmp_path: Path) -> None:
    async with (
        running_worker(tmp_path, "--tcp", "127.0.0.1:0") as worker,
        proxied(worker.url, tmp_path, lambda: 2_500_000) as proxy,
        Workspace.connect(proxy.url, TOKEN, limits=Limits(lease=0)) as workspace,
        workspace.agent() as agent,
    ):
        with pytest.raises(SessionLost) as caught:
            await agent.ipython(SHOWS_LARGE)
        assert caught.value.fate == "maybe_executed"
        assert workspace.lost is not None
