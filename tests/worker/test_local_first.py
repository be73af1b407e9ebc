"""What concerns the workspace is answered by the worker itself: cells do not notice that the harness is far away."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

import rlm_wire
from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.session import open_peer
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.limits import PROTOCOL_VERSION, Limits
from rlm_wire.methods.events import FollowEvents, ShellCompleted
from rlm_wire.methods.kernels import Execute
from rlm_wire.methods.sessions import OpenAgent, OpenWorkspace
from rlm_wire.testing import StalledStream
from rlm_wire.transports import ByteStream
from rlm_wire.transports.memory import memory_pair
from rlm_worker.environment import workspace_environment
from rlm_worker.kernel import open_kernel_host
from rlm_worker.processes import Reaper
from rlm_worker.service import worker_service
from rlm_worker.sessions import Worker

in_thread = functools.partial(trio.to_thread.run_sync, abandon_on_cancel=True)

CELL = """
import pathlib
pathlib.Path("begun").read_text()
assert rlm.shell.run("true").ok
job = rlm.shell.start("echo hello; cat", stdin=True)
assert job.read(wait=30).text == "hello\\n"
rlm.watch.path(".").cancel()
job.close_stdin()
assert job.result().ok
assert rlm.service.start("s", "echo up; exec sleep 1000", log="up").status == "ready"
assert rlm.service.stop("s").status == "stopped"
pathlib.Path("done").write_text("done")
"""


@asynccontextmanager
async def session(stream: ByteStream, service: rlm_wire.Service, *, client: bool) -> AsyncIterator[rlm_wire.Peer]:
    connection = Connection(client=client, codec=codec_named("msgpack"), ours=Limits(), theirs=Limits())
    info = PeerInfo("test", PROTOCOL_VERSION, "msgpack", [], Limits(), session="")
    async with open_peer(connection, stream, service, info, keepalive=False) as peer:
        yield peer


async def test_a_cell_runs_jobs_watches_and_services_while_nothing_passes_the_link(
    reaper: Reaper, tmp_path: Path
) -> None:
    env = workspace_environment(os.environ)
    near, far = memory_pair()
    link = StalledStream(far)
    for name in ("begun", "done"):
        os.mkfifo(tmp_path / name)
    async with (
        open_kernel_host(reaper, env=env) as host,
        session(link, worker_service(Worker(reaper, host, str(tmp_path), env)), client=False),
        session(near, rlm_wire.Service(), client=True) as harness,
    ):
        await harness.call(OpenWorkspace())
        agent = (await harness.call(OpenAgent())).agent
        async with harness.open(Execute(agent, CELL)) as cell:
            begun = await in_thread(os.open, tmp_path / "begun", os.O_WRONLY)  # the cell opens it, too
            link.stall()
            os.close(begun)
            assert await in_thread((tmp_path / "done").read_text) == "done"
            link.resume()
            result = await cell.result()
            assert result.status == "ok", result
        async with harness.open(FollowEvents()) as events:
            async for event in events:
                if isinstance(event.content, ShellCompleted) and event.content.job == "job-2":
                    assert event.agent == agent
                    break
