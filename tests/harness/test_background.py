"""Jobs, services and watches through the whole stack: for harnesses over each kind of link, and for cells."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from rlm_harness import AgentTools, Workspace
from rlm_wire.errors import CallError
from rlm_wire.methods.events import Event, JobOutputGrew, PathChanged, ServiceChanged, ShellCompleted, WatchFailed
from rlm_wire.methods.services import Ready
from rlm_wire.methods.sessions import Quotas

T = TypeVar("T")
TOKEN = "a token of the background tests"


@pytest.fixture(scope="module", params=["unix", "tcp"])
def far_worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One worker for the module, at the other end of each kind of link."""
    directory = tmp_path_factory.mktemp("worker")
    (directory / "token").write_text(TOKEN)
    where = ["--unix", str(directory / "socket")]
    if request.param == "tcp":
        where = ["--tcp", "127.0.0.1:0", "--token-file", str(directory / "token")]
    command = [sys.executable, "-m", "rlm_worker", "serve", *where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as worker:
        assert worker.stdout is not None
        yield worker.stdout.readline().removeprefix("listening on ").strip()
        worker.terminate()


class Watcher:
    """What the events of a workspace have told so far."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = trio.Event()

    async def follow(self, workspace: Workspace) -> None:
        async with workspace.events() as events:
            async for event in events:
                self.events.append(event)
                self._more.set()
                self._more = trio.Event()

    async def wait_for(self, kind: type[T], wanted: Callable[[T], object] = lambda _: True) -> T:
        while True:
            for event in self.events:
                if isinstance(event.content, kind) and wanted(event.content):
                    return event.content
            await self._more.wait()


@asynccontextmanager
async def opened(url: str, cwd: Path, quotas: Quotas | None = None) -> AsyncIterator[tuple[AgentTools, Watcher]]:
    watcher = Watcher()
    async with (
        Workspace.connect(url, TOKEN, str(cwd), quotas=quotas) as workspace,
        trio.open_nursery() as nursery,
        workspace.agent() as agent,
    ):
        nursery.start_soon(watcher.follow, workspace)
        yield agent, watcher
        nursery.cancel_scope.cancel()


async def test_a_harness_has_jobs_services_and_watches_at_the_other_end(far_worker: str, tmp_path: Path) -> None:
    async with opened(far_worker, tmp_path, Quotas(active_jobs=2)) as (agent, watcher):
        assert (await agent.jobs.run(["echo", "a b"])).text == "a b\n"
        # B30: input, its end, and the output behind it
        job = (await agent.jobs.start("sort; echo done; exec sleep 1000", stdin=True)).id
        watch = await agent.watches.job(job)
        await agent.jobs.write(job, "世\nä\n".encode())
        await agent.jobs.close_stdin(job)
        await watcher.wait_for(JobOutputGrew, lambda content: content.subscription_id == watch.id)
        async with agent.jobs.follow(job) as live:
            text = b""
            async for chunk in live:
                text += chunk.data
                if text.endswith(b"done\n"):
                    break
            live.cancel()
            assert (await live.result()).status == "running"
        assert text.decode() == "ä\n世\ndone\n"
        # B49: positions are bytes, and a piece ends between characters
        piece = await agent.jobs.read(job, cursor=0, max_bytes=5)
        assert (piece.text, piece.next_cursor) == ("ä\n", 3)
        await agent.jobs.start("exec sleep 1000")
        with pytest.raises(CallError, match="active shell job limit reached"):
            await agent.jobs.start("true")
        # B59: a wait that is cancelled leaves the job alone
        with trio.move_on_after(0.1) as scope:
            await agent.jobs.result(job)
        assert scope.cancelled_caught
        assert (await agent.jobs.get(job)).status == "running"
        assert (await agent.jobs.cancel(job)).status == "cancelled"
        assert (await watcher.wait_for(ShellCompleted, lambda content: content.job == job)).status == "cancelled"
        assert await agent.jobs.setenv({"A": "1"}) == await agent.jobs.getenv() == {"A": "1"}
        assert [one.status for one in await agent.jobs.list()] == ["completed", "cancelled", "running"]

        path = await agent.watches.path(".")
        assert (await agent.watches.get(path.id)).status == "active"
        (tmp_path / "file").touch()
        changed = await watcher.wait_for(PathChanged)
        assert (changed.target, changed.paths) == (str(tmp_path), [str(tmp_path / "file")])
        await agent.watches.cancel(path.id)
        assert [one.status for one in await agent.watches.list()] == ["completed", "cancelled"]

        service = await agent.services.start("s", "echo $A up; exec sleep 1000", ready=Ready(log="1 up"))
        assert (await agent.services.get("s")).pid == service.pid
        assert (await agent.services.read("s")).text == "1 up\n"
        await agent.services.stop("s")
        assert [one.status for one in await agent.services.list()] == ["stopped"]
        await watcher.wait_for(ServiceChanged, lambda content: content.status == "stopped")
    assert agent.closed is not None
    assert agent.closed.stopped == 1
    numbers = [event.number for event in watcher.events]
    assert numbers == list(range(1, len(numbers) + 1))


async def value(agent: AgentTools, code: str) -> str | None:
    result = await agent.ipython(code, timeout=60)
    assert result.status == "ok", result
    return result.result


async def test_b08_what_a_cell_started_outlives_its_cell_its_kernel_and_cancelled_turns(
    worker_url: str, tmp_path: Path
) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    server = f"exec {shlex.quote(sys.executable)} -u -m http.server --bind 127.0.0.1 {port}"
    async with opened(worker_url, tmp_path) as (agent, watcher):
        start = f"job = rlm.shell.start({server!r}); 'Serving' in job.read(wait=60).text"
        assert await value(agent, start) == "True"
        assert await value(agent, "rlm.service.start('idle', 'exec sleep 1000').status") == "'ready'"
        await value(agent, "rlm.watch.path('.'), rlm.shell.setenv(A='kept')")
        assert (await agent.ipython("import os; os._exit(1)")).status == "kernel_died"
        assert (await agent.bash("sleep 1000", timeout=0.1)).timed_out
        with trio.move_on_after(0.2):
            await agent.ipython("rlm.shell.result('job-1')")
        assert (await agent.fetch(f"http://127.0.0.1:{port}/")).status == 200
        assert (
            await value(agent, "rlm.shell.list()[0].status, rlm.service.get('idle').status") == "('running', 'ready')"
        )
        assert await value(agent, "rlm.shell.getenv()") == "{'A': 'kept'}"
        (tmp_path / "new").touch()
        await watcher.wait_for(PathChanged)
        assert await value(agent, "rlm.shell.get('job-1').cancel().status") == "'cancelled'"
        assert await value(agent, start) == "True"  # on the same port, which is free at once
        assert (await agent.fetch(f"http://127.0.0.1:{port}/")).status == 200
        assert (await agent.jobs.cancel("job-2")).status == "cancelled"
        again = f"rlm.service.start('web', {server!r}, http='http://127.0.0.1:{port}/new').status"
        assert await value(agent, again) == "'ready'"
        pid = (await agent.services.get("web")).pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)


CELLS = {
    "rlm.shell.run('echo hi; exit 3', yield_after=60)": "<job-1 exit code 3>",
    "rlm.shell.run(['echo', 'a b']).text": "'a b\\n'",
    "job = await rlm.shell.run('cat', stdin=True, yield_after=0); job.running, job.ok": "(True, False)",
    "await job.write('grüezi\\n'); await job.close_stdin(); (await job.result()).text": "'grüezi\\n'",
    "eval(job.text.split('Collect it with: ')[1].rstrip(']\\n')).text": "'grüezi\\n'",
    "job.read(cursor=2, max_bytes=3).text, job.info().output_bytes": "('üe', 8)",
    "rlm.shell.setenv({'A': '1'}, B='2'), rlm.shell.run('echo $A$B', env={'B': '3'}).text": (
        "({'A': '1', 'B': '2'}, '13\\n')"
    ),
    "rlm.shell.run('sleep 1000', timeout=0.1)": "<job-5 timed out>",
    "watch = rlm.watch.job(job); watch, [one.id for one in rlm.watch.list()]": (
        "(<watch-1 of job-3: completed>, ['watch-1'])"
    ),
    "rlm.watch.path('.', recursive=True).cancel().status, rlm.watch.get('watch-1').kind": "('cancelled', 'job')",
    "rlm.service.start('s', ['sleep', '1000']).name, rlm.service.list()[0].status": "('s', 'ready')",
    "rlm.service.read('s').text, rlm.service.stop('s').status": "('', 'stopped')",
    "[one['id'] for one in rlm.call('jobs.list', agent='another')][:2]": "['job-1', 'job-2']",
}

MISTAKES = {
    "rlm.shell.get('job-99')": "not_found: unknown job",
    "rlm.shell.run(' ')": "invalid_argument: empty command",
    "rlm.shell.run('true', cwd='missing')": "not_found: ",
    "rlm.shell.run(['a', 1])": "invalid_argument: ",
    "rlm.watch.path('missing')": "not_found: ",
    "rlm.service.start('s', 'exit 3', log='x')": "failed_precondition: the service 's' ended before it was ready",
    "rlm.service.start('s', 'true', port=1, log='x')": "invalid_argument: a readiness check has exactly one",
    "rlm.service.stop('t')": "not_found: there is no service 't'",
}


async def test_cells_use_them_by_name_and_mistakes_are_errors_of_rlm(worker_url: str, tmp_path: Path) -> None:
    async with opened(worker_url, tmp_path) as (agent, watcher):
        for code, shown in CELLS.items():
            assert await value(agent, code) == shown, code
        for code, message in MISTAKES.items():
            result = await agent.ipython(code, timeout=60)
            assert result.error is not None, code
            assert result.error.name == "Error"
            assert result.error.message.startswith(message), code
        (tmp_path / "gone").touch()
        await value(agent, "rlm.watch.path('gone')")
        (tmp_path / "gone").unlink()
        assert (await watcher.wait_for(WatchFailed)).target == str(tmp_path / "gone")


async def test_b26_a_hundred_jobs_that_flood_stay_within_what_was_granted(worker_url: str, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    quotas = Quotas(active_jobs=100, job_bytes=1 << 17, total_bytes=4 << 20)
    env = {"TMPDIR": str(tmp_path / "tmp")}
    async with Workspace.connect(worker_url, cwd=str(tmp_path), env=env, quotas=quotas) as workspace:
        async with workspace.agent() as agent, trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(agent.jobs.run, "yes | head -c 300000")
        assert sum(file.stat().st_size for file in (tmp_path / "tmp").rglob("*.bin")) <= quotas.total_bytes
        async with workspace.agent() as agent:
            job = await agent.jobs.start("seq 1 9999 > log; tail -n +1 -f log | tee -a log")
            piece = await agent.jobs.read(job.id, wait=60)
            assert piece.data.startswith(b"1\n2\n")
            while not piece.truncated:
                piece = await agent.jobs.read(job.id, cursor=piece.next_cursor, wait=60)
            assert piece.reason == "more was printed than is kept of one job"
            assert (await agent.jobs.cancel(job.id)).status == "cancelled"
