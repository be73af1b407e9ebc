"""Jobs, as harness and cells use them: what they print, how they end, who waits for them, what is kept."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from worker.background import AGENT, NO_PATHS, Desk, alive, open_desk

from rlm_wire.errors import CallError, Code
from rlm_wire.methods.events import ShellCollected, ShellCompleted, ShellStarted
from rlm_wire.methods.jobs import (
    CancelJob,
    CloseJobStdin,
    FollowJob,
    GetEnvironment,
    GetJobInfo,
    JobInfo,
    JobResult,
    ListJobs,
    OutputRange,
    ReadJob,
    RunJob,
    SetEnvironment,
    WriteJob,
)
from rlm_wire.methods.sessions import Quotas
from rlm_wire.methods.tools import OutputChunk
from rlm_worker.processes import Reaper


@pytest.fixture
async def desk(reaper: Reaper, tmp_path: Path, environment: dict[str, str]) -> AsyncIterator[Desk]:
    async with open_desk(reaper, tmp_path, {**environment, "TMPDIR": str(tmp_path)}) as desk:
        yield desk


async def refused(desk: Desk, request: object) -> Code:
    with pytest.raises(CallError) as error:
        await desk.ask(request)
    return error.value.code


async def info(desk: Desk, job: str) -> JobInfo:
    answer: JobInfo = await desk.ask(GetJobInfo(AGENT, job))
    return answer


async def read(desk: Desk, job: str, cursor: int = 0, size: int = 65_536, wait: float = 0) -> OutputRange:
    answer: OutputRange = await desk.ask(ReadJob(AGENT, job, cursor, size, wait))
    return answer


async def test_a_job_tells_its_output_code_and_history(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    job = await desk.run("pwd; echo $WORD; echo err >&2; exit 3", cwd="sub", env={"WORD": "grüezi"})
    assert (job.text, job.exit_code, job.ok) == (f"{tmp_path}/sub\ngrüezi\nerr\n", 3, False)
    assert (await desk.run(["echo", "a b", "$HOME"], cwd="")).text == "a b $HOME\n"
    assert (await desk.run("false | true")).exit_code == 1
    assert (await desk.run("cat; kill -9 $$")).signal == 9
    listed = await desk.ask(ListJobs(AGENT))
    assert [(one.id, one.status) for one in listed] == [(f"job-{number}", "completed") for number in (1, 2, 3, 4)]
    known = await info(desk, "job-1")
    assert (known.exit_code, known.output_complete, known.owner_id, known.cwd) == (3, True, AGENT, f"{tmp_path}/sub")
    assert await desk.ask(ListJobs("other")) == []
    assert await refused(desk, GetJobInfo("other", "job-1")) == "not_found"


async def test_what_cannot_be_started_is_refused_and_is_no_job(desk: Desk) -> None:
    wrong: dict[str, Code] = {" ": "invalid_argument", "x" * 65_537: "invalid_argument", "\0": "invalid_argument"}
    for command, code in wrong.items():
        assert await refused(desk, RunJob(AGENT, command)) == code
    assert await refused(desk, RunJob(AGENT, [])) == "invalid_argument"
    assert await refused(desk, RunJob(AGENT, "true", cwd="missing")) == "not_found"
    for path in (*NO_PATHS, "x/" * 2040):
        assert await refused(desk, RunJob(AGENT, "true", cwd=path)) == "invalid_argument"
    assert await refused(desk, RunJob(AGENT, "true", env={"A=B": ""})) == "invalid_argument"
    assert await refused(desk, RunJob(AGENT, "true", timeout=0)) == "invalid_argument"
    assert await refused(desk, RunJob(AGENT, "true", yield_after=-1)) == "invalid_argument"
    assert await desk.ask(ListJobs(AGENT)) == []


async def test_a_yielded_job_says_how_to_collect_it_and_tells_its_end_once(desk: Desk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    command = "echo first; read line < go; echo $line"
    yielded = await desk.ask(RunJob(AGENT, command, yield_after=0))
    assert yielded.running
    assert yielded.text == '[job-1 is still running. Collect it with: rlm.shell.result("job-1")]\n'
    await read(desk, "job-1", wait=60)
    assert (await desk.ask(JobResult(AGENT, "job-1", 0.01))).text.endswith('("job-1")]\nfirst\n')
    await trio.to_thread.run_sync((tmp_path / "go").write_text, "second", abandon_on_cancel=True)
    completed = await desk.wait_for(ShellCompleted)
    assert (completed.status, completed.exit_code, completed.text) == ("completed", 0, "first\nsecond\n")
    assert not completed.collected
    assert (await desk.result("job-1")).text == (await desk.result("job-1")).text == "first\nsecond\n"
    assert (await desk.run("echo waited for")).ok
    await desk.wait_for(ShellCompleted, lambda content: content.collected)
    kinds = [(type(event.content), event.number) for event in desk.events]
    assert kinds == [
        (kind, number)
        for number, kind in enumerate([ShellStarted, ShellCompleted, ShellCollected, ShellStarted, ShellCompleted], 1)
    ]


async def test_b59_a_wait_that_is_cancelled_leaves_the_job_alone_and_a_kill_wakes_all_who_wait(desk: Desk) -> None:
    job = await desk.start("trap 'exit 5' TERM; while :; do sleep 1000 & wait; done")
    for request in (JobResult(AGENT, job), ReadJob(AGENT, job, wait=300), RunJob(AGENT, "sleep 1000")):
        with trio.move_on_after(0.05) as scope:
            await desk.ask(request)
        assert scope.cancelled_caught
    assert [one.status for one in await desk.ask(ListJobs(AGENT))] == ["running", "running"]
    results = []

    async def wait() -> None:
        results.append(await desk.result(job))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        nursery.start_soon(read, desk, job, 0, 1, 300)
        await trio.testing.wait_all_tasks_blocked()
        assert (await desk.ask(CancelJob(AGENT, job))).status == "cancelled"
    assert [(result.running, result.exit_code) for result in results] == [(False, None)] * 2
    assert (await desk.ask(CancelJob(AGENT, job))).status == "cancelled"


async def test_a_timeout_ends_the_whole_tree_and_keeps_the_output(desk: Desk) -> None:
    job = await desk.run("echo started; (sleep 1000; echo never) & echo $!; wait", timeout=0.5)
    first, pid = job.text.split()
    assert (first, job.timed_out, job.exit_code, job.ok) == ("started", True, None, False)
    assert not alive(int(pid))
    assert (await info(desk, job.id)).status == "timed_out"


async def test_a_background_process_that_holds_the_output_is_named_and_runs_on(
    desk: Desk, end: Callable[[int], None]
) -> None:
    assert (await desk.run("(sleep 0.3; echo late) & echo early")).text == "early\nlate\n"
    job = await desk.run("sleep 1000 & echo $!")
    pid = int(job.text)
    end(pid)
    assert job.ok
    assert str(pid) in job.notices[0]
    assert alive(pid)
    assert not (await info(desk, job.id)).output_complete


async def test_output_of_any_length_reads_as_head_and_tail_and_by_position(desk: Desk) -> None:
    job = await desk.run("seq 1 200000")
    whole = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    assert job.truncated
    head, marker, tail = job.text.partition("\n[... ")[0], job.text.split("[... ")[1], job.text.rpartition("...]\n")[2]
    assert whole.startswith(head.encode())
    assert whole.endswith(tail.encode())
    assert len(head) == len(tail) == 8192
    assert marker.startswith(f"{len(whole) - 16384} bytes omitted; read on with job.read(cursor=8192) ")
    pieces, cursor, done = [], 0, False
    while not done:
        piece = await read(desk, job.id, cursor)
        pieces.append(piece.data)
        cursor, done = piece.next_cursor, piece.done
    assert b"".join(pieces) == whole
    path = (await info(desk, job.id)).output_path
    assert path is not None
    assert Path(path).read_bytes() == whole
    past = await read(desk, job.id, len(whole) + 5)
    assert (past.data, past.next_cursor, past.done) == (b"", len(whole), True)
    assert await refused(desk, ReadJob(AGENT, job.id, -1)) == "invalid_argument"
    assert await refused(desk, ReadJob(AGENT, job.id, 0, 65_537)) == "invalid_argument"


async def test_b49_positions_are_bytes_and_no_piece_cuts_a_character(desk: Desk) -> None:
    source = "aé世𝄞".encode() * 3
    job = await desk.run(["printf", "%s", source.decode()])
    for start in range(len(source) + 1):
        for size in range(1, 8):
            cursor, pieces, done = start, [], start == len(source)
            while not done:
                piece = await read(desk, job.id, cursor, size)
                assert piece.next_cursor == cursor + len(piece.data)
                pieces.append(piece)
                cursor, done = piece.next_cursor, piece.done
            assert b"".join(piece.data for piece in pieces) == source[start:]
            if start == 0:
                assert "".join(piece.text for piece in pieces) == source.decode()


async def test_live_items_follow_a_job_to_its_end(desk: Desk) -> None:
    job = await desk.start("for i in 1 2 3; do printf '\\303'; sleep 0.1; printf '\\244\\n'; done; seq 1 100000")
    items: list[OutputChunk] = []

    async def send(item: OutputChunk) -> None:
        await trio.lowlevel.checkpoint()
        items.append(item)

    known = await desk.background.jobs.follow(FollowJob(AGENT, job), send, trio.CancelScope)
    assert (known.status, known.output_bytes) == ("completed", sum(len(item.data) for item in items))
    assert "".join(item.data.decode() for item in items).startswith("ä\nä\nä\n1\n2\n")
    assert all(len(item.data) <= 64 * 1024 for item in items)


async def test_b30_input_reaches_a_job_and_its_end_too(desk: Desk) -> None:
    job = await desk.start("sort | tee >(wc -c)", stdin=True)
    line = b"x" * 1023 + b"\n"
    for _ in range(4):
        await desk.ask(WriteJob(AGENT, job, line * 256))
    await desk.ask(CloseJobStdin(AGENT, job))
    result = await desk.result(job)
    assert result.exit_code == 0
    assert result.text.endswith("\n1048576\n")
    for request in (WriteJob(AGENT, job, b"x"), CloseJobStdin(AGENT, job)):
        assert await refused(desk, request) == "failed_precondition"
    assert (await desk.run("cat")).text == ""
    assert await refused(desk, WriteJob(AGENT, "job-2", b"x")) == "failed_precondition"


async def test_b30_a_job_that_does_not_read_holds_its_writer_up_and_nobody_else(
    desk: Desk, end: Callable[[int], None]
) -> None:
    job = await desk.start("exec sleep 1000", stdin=True)
    with trio.move_on_after(0.1) as scope:
        await desk.ask(WriteJob(AGENT, job, bytes(1024 * 1024)))
    assert scope.cancelled_caught
    assert await refused(desk, WriteJob(AGENT, job, bytes(1024 * 1024 + 1))) == "invalid_argument"
    codes: list[Code] = []

    async def write() -> None:
        codes.append(await refused(desk, WriteJob(AGENT, job, b"x")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        await desk.ask(CancelJob(AGENT, job))
    assert codes == ["failed_precondition"]
    left = await desk.start("sleep 1000 <&0 & echo $!; sleep 0.2", stdin=True)
    end(int((await read(desk, left, wait=60)).text))
    assert await refused(desk, WriteJob(AGENT, left, bytes(1024 * 1024))) == "failed_precondition"
    for _ in range(2):
        closed = await desk.start("exec sleep 1000", stdin=True)
        await desk.ask(CloseJobStdin(AGENT, closed))
        await desk.ask(CloseJobStdin(AGENT, closed))
        assert await refused(desk, WriteJob(AGENT, closed, b"x")) == "failed_precondition"
    deaf = await desk.start("exec 0<&-; echo closed; exec sleep 1000", stdin=True)
    await read(desk, deaf, wait=60)
    assert await refused(desk, WriteJob(AGENT, deaf, b"x")) == "failed_precondition"


async def test_b76_a_job_never_waits_for_a_reader(desk: Desk) -> None:
    job = await desk.run("head -c 10000000 /dev/zero >&2; head -c 10000000 /dev/zero; echo done")
    assert (job.exit_code, (await info(desk, job.id)).output_bytes) == (0, 20_000_005)


async def test_b26_what_floods_is_bounded_on_disk_and_says_what_was_dropped(desk: Desk, tmp_path: Path) -> None:
    desk.background.grant(Quotas(job_bytes=1 << 20, total_bytes=5 << 18))
    first = await desk.run("seq -w 1 1000000 | head -c 1000000")
    flood = await desk.start("yes 0123456")
    while (await info(desk, flood)).output_bytes < 8 << 20:
        await read(desk, flood, (await info(desk, flood)).output_bytes, wait=60)
    running = await info(desk, flood)
    assert (running.status, running.output_truncated) == ("running", True)
    ended = await desk.ask(CancelJob(AGENT, flood))
    path = Path(ended.output_path)
    assert path.stat().st_size == 1 << 20
    assert sum(file.stat().st_size for file in path.parent.iterdir()) <= 5 << 18
    piece = await read(desk, flood, (1 << 19) - 8)
    assert (len(piece.data), piece.skipped) == (8, 0)
    behind = await read(desk, flood, piece.next_cursor)
    assert behind.skipped == ended.output_bytes - (1 << 20)
    assert behind.truncated
    assert behind.data.startswith(b"0123456\n")
    assert "more was printed" in (behind.reason or "")
    # The first job's output was given up for it, and it says so; what memory held is still there.
    assert "make room" in (await desk.result(first.id)).notices[0]
    assert (await read(desk, first.id, 20_000)).skipped > 0
    assert (await desk.result(first.id)).text == first.text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, if this machine lets us have one."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place]).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


async def test_b68_a_full_disk_is_told_and_costs_no_job_its_end(
    reaper: Reaper, small_disk: Path, environment: dict[str, str]
) -> None:
    async with open_desk(reaper, small_disk, {**environment, "TMPDIR": str(small_disk)}) as desk:
        filler = small_disk / "filler"
        filler.write_bytes(bytes(1020 * 1024))
        assert (await desk.run("echo hi")).text == "hi\n"
        job = await desk.run("seq 1 400000")
        assert job.exit_code == 0
        assert job.text.endswith("400000\n")
        assert "No space left on device" in job.notices[0]
        assert str(small_disk) in job.notices[0]
        filler.unlink()
        assert not (await desk.run("seq 1 40000")).notices
        piece = await read(desk, "job-3", 108_894)
        assert (piece.data.splitlines()[0], piece.skipped) == (b"20001", 0)


async def test_whoever_removes_the_files_of_jobs_loses_output_and_no_job(desk: Desk, tmp_path: Path) -> None:
    ended = await desk.run("seq 1 40000")
    job = await desk.start("seq 1 40000; read line; seq 1 40000; echo end", stdin=True)
    while (await info(desk, job)).output_bytes < 228_894:
        await read(desk, job, (await info(desk, job)).output_bytes, wait=60)
    path = Path((await info(desk, job)).output_path or "")
    shutil.rmtree(path.parent)
    for lost in (ended.id, job):
        piece = await read(desk, lost, 20_000)
        assert piece.skipped > 0
        assert "No such file" in (piece.reason or "")
    await desk.ask(WriteJob(AGENT, job, b"\n"))
    result = await desk.result(job)
    assert result.text.endswith("40000\nend\n")
    assert "No such file" in result.notices[0]
    assert (await read(desk, job, 300_000)).data.startswith(b"1")


def descriptors() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


async def test_b71_a_job_without_descriptors_is_refused_and_later_ones_are_not(desk: Desk) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before) + 1, hard))
    fillers = [os.dup(0) for _ in range(max(before) + 1 - len(before))]
    try:
        assert await refused(desk, RunJob(AGENT, "true")) == "resource_exhausted"
        assert await refused(desk, RunJob(AGENT, "true", stdin=True)) == "resource_exhausted"
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for _ in range(20):
        assert (await desk.run("true")).ok
        assert await refused(desk, RunJob(AGENT, "true", cwd="missing", stdin=True)) == "not_found"
    assert len(descriptors()) <= len(before)


async def test_limits_and_ends_of_an_agents_jobs(desk: Desk) -> None:
    desk.background.grant(Quotas(active_jobs=3))
    jobs = [await desk.start("exec sleep 1000") for _ in range(3)]
    with pytest.raises(CallError, match="active shell job limit reached") as error:
        await desk.start("true")
    assert (error.value.code, error.value.retryable) == ("resource_exhausted", True)
    other = (await desk.ask(CancelJob(AGENT, jobs[0]))).id
    assert (await desk.ask(RunJob("other", "true", yield_after=60))).exit_code == 0
    assert await desk.background.close_agent(AGENT) == (2, [])
    assert await desk.ask(ListJobs(AGENT)) == []
    assert len(await desk.ask(ListJobs("other"))) == 1
    assert other == jobs[0]


async def test_variables_hold_for_later_jobs_of_the_agent_alone(desk: Desk) -> None:
    assert await desk.ask(SetEnvironment(AGENT, {"A": "1", "B": "2"})) == {"A": "1", "B": "2"}
    assert await desk.ask(SetEnvironment(AGENT, {"B": "3"})) == await desk.ask(GetEnvironment(AGENT))
    assert (await desk.run("echo $A $B $HOME", env={"A": "call", "HOME": "here"})).text == "call 3 here\n"
    assert (await desk.ask(RunJob("other", "echo $A$B"))).text == "\n"
    assert await refused(desk, SetEnvironment(AGENT, {"A=": ""})) == "invalid_argument"
    assert await refused(desk, SetEnvironment(AGENT, {"A": "x" * 300_000})) == "resource_exhausted"


async def test_leaving_ends_every_job_and_leaves_no_file(
    reaper: Reaper, tmp_path: Path, environment: dict[str, str], wait_for_end: Callable[[int], bool]
) -> None:
    async with open_desk(reaper, tmp_path, {**environment, "TMPDIR": str(tmp_path)}) as desk:
        job = await desk.start("echo $$; seq 1 100000; exec sleep 1000")
        pid = int((await read(desk, job, wait=60)).text.split()[0])
    assert wait_for_end(pid)
    assert list(tmp_path.iterdir()) == []
