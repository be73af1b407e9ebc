"""Field reports about commands, cells and jobs, as a harness meets them over each kind of link."""

from __future__ import annotations

import os
import random
import signal
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from worker.links import open_link

from rlm_harness import AgentTools, Workspace
from rlm_wire.errors import CallError, WireError
from rlm_wire.methods.tools import BashResult
from rlm_worker.processes import process_table

Running = Callable[[str], list[int]]


@pytest.fixture
async def workspace(link: tuple[str, str | None], tmp_path: Path) -> AsyncIterator[Workspace]:
    url, token = link
    async with Workspace.connect(url, token, str(tmp_path)) as workspace:
        yield workspace


@pytest.fixture
async def agent(workspace: Workspace) -> AsyncIterator[AgentTools]:
    async with workspace.agent() as agent:
        yield agent


@pytest.fixture
def sleeper(tmp_path: Path, running: Running, end: Callable[[int], None]) -> str:
    """A program that sleeps, by a path that nobody else's processes have."""
    path = tmp_path / "sleeper"
    path.symlink_to("/bin/sleep")
    return str(path)


async def text(agent: AgentTools, command: str) -> str:
    return (await agent.bash(command)).output.text


async def value(agent: AgentTools, code: str) -> str | None:
    result = await agent.ipython(code)
    assert result.status == "ok", result
    return result.result or result.output.text


async def test_b01_a_result_comes_although_somebody_holds_the_output(
    agent: AgentTools, sleeper: str, end: Callable[[int], None]
) -> None:
    for redirection in ("", "2>/dev/null", ">/dev/null"):
        result = await agent.bash(f"{sleeper} 1000 {redirection} & echo done")
        (notice,) = result.notices
        end(int(notice.split("pid ")[1].split(",")[0]))
        assert (result.exit_code, result.output.text) == (0, "done\n")


async def test_b04_nothing_of_what_was_cancelled_is_there_when_that_is_said(
    agent: AgentTools, sleeper: str, running: Running, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    tree = f"{sleeper} 1000 | {sleeper} 1000 & setsid --wait {sleeper} 1000 & echo >{ready}; wait"
    async with agent.open_bash(tree) as call:
        await trio.to_thread.run_sync(ready.read_text, abandon_on_cancel=True)
        call.cancel()
        assert (await call.result()).cancelled
    assert running(sleeper) == []
    async with agent.open_ipython(f"!{sleeper} 1000 | {sleeper} 1000 & echo >{ready}; wait") as cell:
        await trio.to_thread.run_sync(ready.read_text, abandon_on_cancel=True)
        cell.cancel()
        assert (await cell.result()).status == "interrupted"
    assert running(sleeper) == []
    assert await value(agent, "1 + 1") == "2"
    job = (await agent.jobs.start(tree)).id
    await trio.to_thread.run_sync(ready.read_text, abandon_on_cancel=True)
    await agent.jobs.cancel(job)
    assert running(sleeper) == []


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_b04_a_hundred_commands_of_several_agents_end_at_once_and_nothing_is_left(
    workspace: Workspace, sleeper: str, running: Running, tmp_path: Path, how: str
) -> None:
    over = trio.Event()
    cancelled: list[bool] = []
    os.mkfifo(tmp_path / "started")
    started = os.open(tmp_path / "started", os.O_RDWR | os.O_NONBLOCK)
    script = f"{sleeper} 1000 | {sleeper} 1000 & setsid --wait {sleeper} 1000 & echo -n . >{tmp_path}/started; wait"

    async def run(agent: AgentTools) -> None:
        async with agent.open_bash(script) as call:
            await over.wait()
            call.cancel()
            cancelled.append((await call.result()).cancelled)

    async def work() -> None:
        with suppress(CallError):  # the agent is closed with the workspace
            async with workspace.agent() as agent, trio.open_nursery() as nursery:
                for _ in range(25):
                    nursery.start_soon(run, agent)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(work)
        count = 0
        while count < 100:
            await trio.lowlevel.wait_readable(started)
            count += len(os.read(started, 100))
        os.close(started)
        if how == "closed":
            receipt = await workspace.close()
            assert (receipt.confirmed, receipt.remaining, receipt.unknown) == (True, [], [])
            nursery.cancel_scope.cancel()
        over.set()
    assert cancelled == [True] * (100 if how == "cancelled" else 0)
    assert running(sleeper) == []


async def test_b08_a_server_lives_until_it_is_stopped_and_its_port_is_free_then(agent: AgentTools) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    for _ in range(2):
        job = (await agent.jobs.start(f"exec python3 -u -m http.server --bind 127.0.0.1 {port}")).id
        assert "Serving" in (await agent.jobs.read(job, wait=60)).text
        assert (await agent.bash("exec sleep 1000", timeout=0.05)).timed_out
        assert (await agent.fetch(f"http://127.0.0.1:{port}/")).status == 200
        assert (await agent.jobs.cancel(job)).status == "cancelled"


async def test_b13_b14_nothing_reads_from_the_link_or_a_terminal(agent: AgentTools) -> None:
    assert await text(agent, "cat; cat /dev/stdin; wc -c </proc/self/fd/0") == "0\n"
    assert await text(agent, "(read x </dev/tty) 2>/dev/null || echo no terminal") == "no terminal\n"
    assert await value(agent, "import os, subprocess; subprocess.run(['cat']).returncode, os.read(0, 10)") == "(0, b'')"
    asked = await agent.ipython("import getpass; getpass.getpass()")
    assert asked.error is not None
    results: list[str] = []

    async def echo(number: int) -> None:
        results.append(await text(agent, f"echo {number}"))

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(echo, number)
    assert sorted(map(int, results)) == list(range(100))


async def test_b16_whatever_is_printed_is_output_and_the_link_goes_on(agent: AgentTools) -> None:
    code = (
        "import ctypes, faulthandler, os, sys, warnings\n"
        "print('print'); os.write(1, b'write\\n'); os.system('echo system'); warnings.warn('warned')\n"
        "libc = ctypes.CDLL(None); libc.puts(b'puts'); libc.fflush(None); faulthandler.dump_traceback(sys.stderr)\n"
    )
    output = (await agent.ipython(code)).output.text
    assert all(word in output for word in ("print", "write", "system", "warned", "puts", "most recent call first"))
    await agent.bash("echo garbage > /proc/$PPID/fd/1; echo garbage > /proc/$PPID/fd/3")
    for number in range(10):
        assert await text(agent, f"echo {number}") == f"{number}\n"


async def test_b19_bytes_that_are_no_text_arrive_as_they_are(agent: AgentTools) -> None:
    result = await agent.bash(r"printf '\325\377\000abc'; printf '\376' >&2; exit 3")
    assert (result.exit_code, result.output.head) == (3, b"\xd5\xff\0abc\xfe")
    assert result.output.text == "\ufffd\ufffd\0abc\ufffd"
    assert (await agent.bash("head -c 100000 /dev/urandom")).output.bytes == 100_000
    assert (await agent.ipython("import os; os.write(1, bytes(range(256))); None")).output.head == bytes(range(256))


async def test_b20_b49_no_character_is_cut_live_or_by_position(agent: AgentTools) -> None:
    pieces: list[str] = []
    script = r"for b in '\xe4' '\xb8' '\x96'; do printf $b; sleep 0.06; done; printf '\xe4' >&2; sleep 0.06; "
    result = await agent.bash(script + r"printf '\xb8\x96' >&2", on_output=pieces.append)
    assert result.output.text == "".join(pieces) == "世世"
    many = await agent.bash(
        "python3 -c 'print(chr(0x1f600) * 262144, end=\"\")' | dd bs=1000 status=none", on_output=print
    )
    assert (many.output.chars, "\ufffd" in many.output.text) == (262_144, False)
    job = (await agent.jobs.run(["printf", "%s", "aä世😀"])).id
    source = "aä世😀".encode()
    for size in range(1, 8):
        for offset in range(len(source) + 1):
            data, cursor = b"", offset
            while not (piece := await agent.jobs.read(job, cursor=cursor, max_bytes=size)).done:
                data, cursor = data + piece.data, piece.next_cursor
            assert data + piece.data == source[offset:]


async def test_b22_text_is_utf8_whatever_the_locale(agent: AgentTools, tmp_path: Path) -> None:
    assert await value(agent, "print(chr(0x4e16)); _ = open('世', 'w').write(chr(0x4e16))") == "世\n"
    assert await text(agent, "python3 -c 'print(chr(0x4e16))'; ls") == "世\n世\n"
    await agent.edit("世", "世", "界")
    assert (tmp_path / "世").read_bytes() == "界".encode()


async def test_b24_an_edit_keeps_mode_and_link(agent: AgentTools, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("one")
    script.chmod(0o755)
    (tmp_path / "link").symlink_to(script)
    await agent.edit("link", "one", "two")
    assert (script.read_text(), stat.S_IMODE(script.stat().st_mode)) == ("two", 0o755)
    assert (tmp_path / "link").is_symlink()
    script.chmod(0o444)
    with pytest.raises(CallError) as refused:
        await agent.edit("script", "two", "three")
    assert refused.value.code == "failed_precondition"


async def test_b25_b45_b57_floods_are_counted_cancelled_and_told_to_the_end(agent: AgentTools) -> None:
    result = await agent.bash("yes | head -c 100000001", on_output=lambda _: None)
    assert (result.output.bytes, result.output.lines, len(result.output.head)) == (100_000_001, 50_000_000, 512 * 1024)
    async with agent.open_bash("yes") as call:
        async for _ in call:
            break
        call.cancel()
        flooded = await call.result()
    assert flooded.cancelled
    assert flooded.output.bytes > 0
    lines: list[str] = []
    cell = await agent.ipython("for n in range(10_000): print(n, flush=True)", on_output=lines.append)
    assert "".join(lines) == cell.output.text == "".join(f"{n}\n" for n in range(10_000))
    for late in (
        await agent.bash("echo -n started; sleep 1000", timeout=2),
        await agent.ipython("print('started', end=''); import time; time.sleep(1000)", timeout=2),
    ):
        assert late.output.text == "started"
        assert late.timed_out if isinstance(late, BashResult) else late.status == "timed_out"
    assert await text(agent, "echo alive") == "alive\n"


@pytest.mark.parametrize("kind", ["stdio", "tcp"])
async def test_b29_results_are_whole_or_lost_when_the_worker_ends_among_them(kind: str, tmp_path: Path) -> None:
    sizes: list[int] = []
    first = trio.Event()

    async def ask(agent: AgentTools) -> None:
        with suppress(WireError):  # it was lost
            output = (await agent.bash("head -c 2000000 /dev/zero")).output
            sizes.append(len(output.head + output.tail))
            first.set()

    with open_link(kind) as (url, token):
        async with Workspace.connect(url, token, str(tmp_path)) as workspace, workspace.agent() as agent:
            await ask(agent)  # and leaves at once
        with suppress(WireError):
            async with Workspace.connect(url, token, str(tmp_path)) as workspace, workspace.agent() as agent:
                first = trio.Event()
                async with trio.open_nursery() as nursery:
                    for _ in range(16):
                        nursery.start_soon(ask, agent)
                    await first.wait()
                    os.kill(workspace.info.pid, signal.SIGTERM)
                    workspace.abandon()
    assert len(sizes) >= 2
    assert set(sizes) == {1024 * 1024}


async def test_b30_b76_input_ends_and_no_stream_waits_for_a_reader(agent: AgentTools) -> None:
    lines = b"".join(b"%07d\n" % number for number in reversed(range(125_000)))
    job = (await agent.jobs.start("sort | tee >(wc -c >&2) | (head -c 8; cat >/dev/null)", stdin=True)).id
    await agent.jobs.write(job, lines)
    await agent.jobs.close_stdin(job)
    assert sorted((await agent.jobs.result(job)).text.split()) == ["0000000", str(len(lines))]
    for refused in (agent.jobs.write(job, b"x"), agent.jobs.close_stdin(job)):
        with pytest.raises(CallError):
            await refused
    idle = (await agent.jobs.start("exec sleep 1000", stdin=True)).id
    with trio.move_on_after(0.1) as scope:
        await agent.jobs.write(idle, bytes(1024 * 1024))
    assert scope.cancelled_caught
    await agent.jobs.cancel(idle)
    command = "head -c 10000000 /dev/zero >&2; head -c 10000000 /dev/zero"
    job = (await agent.jobs.start(command)).id
    await agent.jobs.result(job)
    assert (await agent.jobs.get(job)).output_bytes == 20_000_000
    assert await value(agent, f"rlm.shell.run({command!r}).info().output_bytes") == "20000000"


async def test_b31_b32_b51_a_kernel_that_dies_or_is_stuck_concerns_its_agent_only(
    workspace: Workspace, agent: AgentTools
) -> None:
    async with workspace.agent() as other:
        assert await value(other, "kept = 1; kept") == "1"
        deaths = {
            "import os; os.kill(os.getpid(), 9)": "SIGKILL",
            "import os; os._exit(3)": "code 3",
            "import ctypes; ctypes.string_at(0)": "SIGSEGV",
        }
        for code, how in deaths.items():
            result = await agent.ipython(code)
            assert result.status == "kernel_died"
            assert how in result.notices[-1]
            assert await value(agent, "1 + 1") == "2"
        for code in ("exit()", "raise SystemExit(2)", "import os; os.close(1); os.close(2); print(1)"):
            await agent.ipython(code)
            assert await value(agent, "print(2)") == "2\n"
        async with agent.open_ipython("sum(range(10**12))", timeout=0.5) as stuck:
            for _ in range(20):
                assert await text(other, "echo hi") == "hi\n"
            result = await stuck.result()
        assert result.status == "timed_out"
        assert "ignored the interrupt" in result.notices[0]
        assert await value(other, "kept") == "1"


async def test_b36_b72_many_commands_beside_busy_threads_and_forks_keep_their_codes(agent: AgentTools) -> None:
    codes: dict[int, int | None] = {}

    async def run(number: int) -> None:
        codes[number] = (await agent.bash(f"(sleep 0.01 &); exit {number}")).exit_code

    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.ipython, _THREADS)
        for number in range(100):
            nursery.start_soon(run, number)
    assert codes == {number: number for number in range(100)}
    assert (await agent.ipython(_THREADS)).result == "[0, 0, 0, 0]"
    mine = await descendants(int(await text(agent, "echo $PPID")))
    assert [row for row in mine if not row.alive] == []


async def descendants(reaper: int) -> list[process_table.Row]:
    """What descends from it, once nothing of it sleeps for a moment only."""
    while True:
        rows = process_table.table()
        found = [row for row in rows.values() if row.parent == reaper]
        if not any(b"sleep 0.01" in process_table.command_line(row.pid) for row in found):
            return found
        await trio.lowlevel.checkpoint()


_THREADS = """
import concurrent.futures, hashlib, logging, multiprocessing
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    futures = [pool.submit(hashlib.sha256, bytes(100_000)) for _ in range(200)]
    processes = [multiprocessing.get_context("fork").Process(target=logging.warning, args=["x"]) for _ in range(4)]
    for process in processes: process.start()
    for process in processes: process.join()
[process.exitcode for process in processes]
"""


async def test_b37_every_kind_of_loop_runs_in_a_cell_and_is_cancelled(agent: AgentTools) -> None:
    await value(agent, "import asyncio, trio\nasync def f(): await asyncio.sleep(0); return 1")
    for code in (
        "asyncio.run(f())",
        "trio.run(trio.sleep, 0) or 1",
        "await f()",
        "task = asyncio.ensure_future(asyncio.sleep(1000)); 1",
        "asyncio.run(f())",
    ):
        assert await value(agent, code) == "1"
    for code in ("asyncio.run(asyncio.sleep(1000))", "trio.run(trio.sleep, 1000)", "await asyncio.sleep(1000)"):
        assert (await agent.ipython(code, timeout=0.1)).status == "timed_out"
    assert await value(agent, "await f()") == "1"


async def test_b44_a_result_beyond_all_limits_is_a_preview(agent: AgentTools) -> None:
    shown = await value(agent, "'x' * 100_000_000")
    assert shown is not None
    assert len(shown) < 10_000_000
    assert "length 100000000" in shown
    failed = await agent.ipython("raise ValueError('y' * 50_000_000)")
    assert failed.error is not None
    assert await value(agent, "1") == "1"


async def test_b55_a_command_that_is_cancelled_as_it_ends_has_one_answer(agent: AgentTools) -> None:
    answers: list[bool] = []
    chance = random.Random(55)

    async def race(delay: float) -> None:
        async with agent.open_bash("true") as call:
            with trio.move_on_after(delay):
                await call.result()
            call.cancel()
            call.cancel()
            result = await call.result()
            answers.append(result.cancelled or result.exit_code == 0)

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(race, chance.uniform(0, 0.2))
    assert answers == [True] * 100
    processes = (await agent.jobs.list(), await text(agent, "echo on"))
    assert processes == ([], "on\n")


async def test_b59_a_wait_that_is_cancelled_leaves_the_job_and_its_end_wakes_all(
    workspace: Workspace, agent: AgentTools
) -> None:
    job = (await agent.jobs.start("exec sleep 1000")).id
    for wait in (agent.jobs.result(job), agent.jobs.read(job, wait=300)):
        with trio.move_on_after(0.1) as scope:
            await wait
        assert scope.cancelled_caught
    assert (await agent.jobs.get(job)).status == "running"
    ends: list[int | None] = []

    async def wait_for_it() -> None:
        ends.append((await agent.jobs.result(job)).signal)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_it)
        nursery.start_soon(wait_for_it)
        (process,) = [one for one in (await workspace.processes()).processes if one.kind == "job"]
        os.kill(process.pid, signal.SIGTERM)
    assert ends == [signal.SIGTERM] * 2


async def test_b67_a_directory_that_vanishes_stops_neither_commands_nor_cells(
    link: tuple[str, str | None], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    async with Workspace.connect(*link, str(place)) as workspace, workspace.agent() as agent:
        await value(agent, "import os; os.mkdir('d'); os.chdir('d')")
        await text(agent, f"rm -rf {place}/d; mv {place} {place}.renamed")
        result = await agent.bash("echo hi")
        assert (result.exit_code, result.output.text) == (0, "hi\n")
        assert "instead" in result.notices[0]
        assert await text(agent, "cd / && pwd") == "/\n"
        assert (await agent.jobs.run("echo hi")).text == "hi\n"
        assert await value(agent, "import subprocess; subprocess.run('true', cwd='/').returncode") == "0"


async def test_b69_a_script_of_any_size_runs(agent: AgentTools) -> None:
    for size in (131_071, 131_072, 5_000_000):
        script = "cat <<'EOF' | wc -c\n" + "x" * (size - 30) + "\nEOF"
        assert await text(agent, script) == f"{size - 29}\n"


async def test_b75_lines_end_plainly_but_for_jobs_that_have_a_terminal(agent: AgentTools) -> None:
    assert "\\r" not in await text(agent, r"printf 'a\nb\n' | od -c")
    command = "stty -echo; trap 'stty size; exit 4' INT; cat; echo end; cat"
    job = (await agent.jobs.start(command, tty=True)).id
    await agent.jobs.resize(job, 40, 100)
    await agent.jobs.write(job, b"b\n")
    await agent.jobs.close_stdin(job)
    await agent.jobs.write(job, b"c\n")
    while "end\r\nc\r\n" not in (await agent.jobs.read(job)).text:
        await trio.lowlevel.checkpoint()
    await agent.jobs.write(job, b"\x03")
    result = await agent.jobs.result(job)
    assert result.exit_code == 4
    assert result.text.endswith("b\r\nend\r\nc\r\n40 100\r\n")
    code = (
        "job = rlm.shell.start('printf \"ready\\\\n\"; cat; head -c 1000000 /dev/zero', tty=True)\n"
        "job.read(wait=60); job.resize(40, 100); job.write(b'\\x04')\n"
        "job.result().exit_code, job.info().output_bytes"
    )
    assert await value(agent, code) == "(0, 1000007)"


async def test_b77_scripts_end_as_they_do_as_files(agent: AgentTools, tmp_path: Path) -> None:
    scripts = [
        "cat <<'E' > f\nhi\nE",
        "cat <<E\nhi",
        "echo 'open",
        "echo a \\",
        "printf x; exit 7",
        "set -e; false\necho",
    ]
    for script in [*scripts, "exec echo x", "exit", "echo a # comment"]:
        (tmp_path / "script").write_text(script)
        as_file = await trio.run_process(
            ["bash", str(tmp_path / "script")], capture_stdout=True, capture_stderr=True, check=False, cwd=tmp_path
        )
        result = await agent.bash(script)
        assert result.exit_code == as_file.returncode
        assert as_file.stdout in result.output.head
