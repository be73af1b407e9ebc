"""Jobs in a terminal (B75): keys, sizes, the end of input, and output to the last byte."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
from worker.background import AGENT, Desk, alive, open_desk

from rlm_wire.errors import CallError, Code
from rlm_wire.methods.jobs import CancelJob, CloseJobStdin, GetJobInfo, ReadJob, ResizeJob, WriteJob
from rlm_worker.processes import Reaper
from rlm_worker.processes.tiers import TIERS

SIZE = 1_000_000


@pytest.fixture
async def desk(reaper: Reaper, tmp_path: Path, environment: dict[str, str]) -> AsyncIterator[Desk]:
    async with open_desk(reaper, tmp_path, {**environment, "TERM": "dumb", "TMPDIR": str(tmp_path)}) as desk:
        yield desk


async def shows(desk: Desk, job: str, text: str) -> None:
    """Wait until that is in the job's output."""
    cursor, seen = 0, ""
    while text not in seen:
        piece = await desk.ask(ReadJob(AGENT, job, cursor, wait=60))
        assert not piece.done, seen
        cursor, seen = piece.next_cursor, seen + piece.text


async def whole(desk: Desk, job: str) -> bytes:
    output = b""
    while not (piece := await desk.ask(ReadJob(AGENT, job, len(output), 65_536, wait=60))).done:
        output += piece.data
    return output + piece.data


async def refused(desk: Desk, request: object) -> Code:
    with pytest.raises(CallError) as error:
        await desk.ask(request)
    return error.value.code


@pytest.mark.parametrize("reaper", TIERS, indirect=True)
async def test_b75_a_terminal_is_the_jobs_own_and_only_where_it_was_asked_for(desk: Desk) -> None:
    command = r"test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM && printf 'a\nb\n' >/dev/tty; exit 3"
    job = await desk.run(command, tty=True)
    assert (job.text, job.exit_code) == ("24 80\r\nxterm-256color\r\na\r\nb\r\n", 3)
    assert (await desk.run("echo $TERM", tty=True, env={"TERM": "vt100"})).text == "vt100\r\n"
    plain = await desk.run(r"test -t 0 || test -t 1 || printf '%s\n' $TERM; (: </dev/tty) 2>/dev/null || echo none")
    assert plain.text == "dumb\nnone\n"


async def test_b75_ctrl_c_interrupts_what_runs_in_a_terminal(desk: Desk) -> None:
    job = await desk.start("stty -echo; trap 'echo caught; exit 7' INT; echo ready; while :; do cat; done", tty=True)
    await shows(desk, job, "ready")
    await desk.ask(WriteJob(AGENT, job, b"typed\n"))
    await shows(desk, job, "typed\r\n")  # by cat, which bash has let go by now
    await desk.ask(WriteJob(AGENT, job, b"\x03"))
    result = await desk.result(job)
    assert result.exit_code == 7
    assert result.text.endswith("typed\r\ncaught\r\n")


async def test_b75_a_terminal_gets_another_size_and_its_job_a_signal(desk: Desk) -> None:
    job = await desk.start("trap 'echo winch' WINCH; echo ready; read line; stty size", tty=True)
    await shows(desk, job, "ready")
    for rows, cols in ((0, 80), (24, 65_536), (-1, 80)):
        assert await refused(desk, ResizeJob(AGENT, job, rows, cols)) == "invalid_argument"
    await desk.ask(ResizeJob(AGENT, job, 50, 132))
    await desk.ask(WriteJob(AGENT, job, b"\n"))
    assert (await desk.result(job)).text.endswith("winch\r\n50 132\r\n")
    assert await refused(desk, ResizeJob(AGENT, job, 50, 132)) == "failed_precondition"
    pipe = await desk.start("cat", stdin=True)
    assert await refused(desk, ResizeJob(AGENT, pipe, 50, 132)) == "failed_precondition"
    assert await refused(desk, ResizeJob("other", pipe, 50, 132)) == "not_found"


async def test_b75_the_end_of_input_is_for_who_reads_at_the_moment(desk: Desk) -> None:
    job = await desk.start("stty -echo; cat; echo then; cat", tty=True)
    await desk.ask(WriteJob(AGENT, job, "grüezi\n".encode()))
    await shows(desk, job, "grüezi")
    await desk.ask(CloseJobStdin(AGENT, job))
    await shows(desk, job, "then")
    await desk.ask(WriteJob(AGENT, job, b"again\n"))
    await shows(desk, job, "again")
    await desk.ask(CloseJobStdin(AGENT, job))
    assert (await desk.result(job)).exit_code == 0
    for request in (WriteJob(AGENT, job, b"x"), CloseJobStdin(AGENT, job)):
        assert await refused(desk, request) == "failed_precondition"


async def test_b75_a_terminal_loses_nothing_of_what_was_written_just_before_the_end(desk: Desk, tmp_path: Path) -> None:
    data = os.urandom(SIZE)
    (tmp_path / "data").write_bytes(data)
    job = await desk.run("stty raw; exec cat data", tty=True)
    assert await whole(desk, job.id) == data
    for _ in range(10):
        job = await desk.run(f"stty -opost; exec head -c {SIZE} /dev/zero", tty=True)
        known = await desk.ask(GetJobInfo(AGENT, job.id))
        assert (known.output_bytes, known.output_complete) == (SIZE, True)


async def test_b75_a_terminal_takes_all_that_is_written_by_a_slow_reader_too(desk: Desk) -> None:
    data = os.urandom(SIZE)
    job = await desk.start(f"stty raw -echo; echo ready; sleep 0.1; head -c {SIZE} | sha256sum", tty=True)
    await shows(desk, job, "ready")
    await desk.ask(WriteJob(AGENT, job, data))
    assert hashlib.sha256(data).hexdigest() in (await desk.result(job)).text


async def test_a_job_in_a_terminal_ends_with_all_that_descends_from_it(desk: Desk) -> None:
    job = await desk.start("trap '' TERM HUP; echo ready; setsid --wait sleep 1000 & sleep 1000 | sleep 1000", tty=True)
    await shows(desk, job, "ready")
    assert (await desk.ask(CancelJob(AGENT, job))).status == "cancelled"
    assert await desk.place.reaper.running() == []
    job = await desk.start("echo ready; sleep 1000", tty=True)
    await shows(desk, job, "ready")
    await desk.background.close_agent(AGENT)
    assert await desk.place.reaper.running() == []


async def test_what_a_job_left_in_its_terminal_can_write_there_until_its_end(
    desk: Desk, tmp_path: Path, end: Callable[[int], None], wait_for_end: Callable[[int], bool]
) -> None:
    os.mkfifo(tmp_path / "go")
    left = "(trap '' HUP; echo $BASHPID >pid; read x <go; seq 100000; echo $? >written; exec sleep 1000)"
    job = await desk.run(f"{left} & until test -s pid; do :; done", tty=True)
    pid = int((tmp_path / "pid").read_text())
    end(pid)
    assert f"pid {pid}" in job.notices[0]
    await trio.to_thread.run_sync((tmp_path / "go").write_text, "\n", abandon_on_cancel=True)
    while not (tmp_path / "written").exists() or not (tmp_path / "written").read_text():
        await trio.lowlevel.checkpoint()
    assert (tmp_path / "written").read_text() == "0\n"
    assert alive(pid)
    os.kill(pid, 9)
    assert await trio.to_thread.run_sync(wait_for_end, pid)
    assert (await desk.run("echo $TERM", tty=True)).ok
    assert await desk.place.reaper.running() == []
