"""Interrupts, timeouts, deaths and recoveries: what the result says, and what is left."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest
import trio

from rlm_worker.kernel import Cell
from rlm_worker.processes import process_table


def is_alive(pid: int) -> bool:
    row = process_table.row(pid)
    return row is not None and row.alive


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import time\ntime.sleep(3600)", "KeyboardInterrupt"),
        ("while True: pass", "KeyboardInterrupt"),
        ("import asyncio\nawait asyncio.sleep(3600)", "CancelledError"),
        ("import asyncio, time\nawait asyncio.sleep(0)\ntime.sleep(3600)", "KeyboardInterrupt"),
        ("import asyncio\nawait asyncio.gather(asyncio.sleep(3600), asyncio.sleep(0))", "CancelledError"),
        ("import asyncio\nasyncio.run(asyncio.sleep(3600))", "KeyboardInterrupt"),
        ("import trio\ntrio.run(trio.sleep, 3600)", "KeyboardInterrupt"),
        ("!sleep 3600", "KeyboardInterrupt"),
        ("x = !sleep 3600", "KeyboardInterrupt"),
        ("%%bash\ntrap '' INT\nsleep 3600", "KeyboardInterrupt"),
        ("import subprocess\nsubprocess.run(['sleep', '3600'])", "KeyboardInterrupt"),
        ("import threading\nthreading.Event().wait()", "KeyboardInterrupt"),
        ("import select\nselect.select([], [], [])", "KeyboardInterrupt"),
        ("import re\nre.match('(a+)+$', 'a' * 40 + 'b')", "KeyboardInterrupt"),
    ],
)
def test_a_timeout_interrupts_the_cell_and_keeps_the_namespace(agent, code, error):
    agent.ok("kept = 'kept'")
    result = agent(f"print('started')\n{code}" if not code.startswith("%%") else code, timeout=0.3)
    assert result.status == "timed_out"
    assert result.error.name == error
    assert result.error.traceback
    assert "live on" in result.notices[0]
    if not code.startswith("%%"):
        assert result.output.text == "started\n"
    assert agent.ok("kept").result == "'kept'"
    pid = int(agent.ok("import os; os.getpid()").result)
    assert [row for row in process_table.table().values() if row.parent == pid and row.alive] == []


def test_an_interrupt_in_the_moment_of_a_commands_start_ends_the_command(agent):
    pid = int(agent.ok("import os; os.getpid()").result)
    agent.ok(_INTERRUPT_STARTS)
    for code in ("!exec sleep 3600", "x = !exec sleep 3600", "%%bash\nexec sleep 3600"):
        result = agent(code)
        assert (result.status, result.error.name) == ("interrupted", "KeyboardInterrupt")
        assert [row for row in process_table.table().values() if row.parent == pid and row.alive] == []


_INTERRUPT_STARTS = """
import signal, subprocess
start = subprocess._fork_exec
def start_and_interrupt(*arguments):
    pid = start(*arguments)
    signal.raise_signal(signal.SIGINT)
    return pid
subprocess._fork_exec = start_and_interrupt
"""


STUBBORN = {
    "b32 a C loop with an end": "sum(range(10**12))",
    "b32 a C loop without end": "import collections, itertools\ncollections.deque(itertools.repeat(0), maxlen=0)",
    "a swallowed interrupt": "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass",
    "a swallowed cancellation": (
        "import asyncio\nwhile True:\n    try: await asyncio.sleep(9)\n    except asyncio.CancelledError: pass"
    ),
}


def test_b32_a_cell_that_ignores_the_interrupt_loses_its_kernel_but_not_its_output(workshop, request):
    results = {}

    async def stubborn(name: str) -> None:
        execute = workshop.kernels.execute
        agent = f"{request.node.name} {name}"
        results[name] = await execute(agent, f"print('begun')\n{STUBBORN[name]}", timeout=0.2)
        results[name, "next"] = await execute(agent, "'fresh'", timeout=20)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for name in STUBBORN:
                nursery.start_soon(stubborn, name)

    workshop.run(run)
    for name in STUBBORN:
        result = results[name]
        assert (result.status, result.output.text) == ("timed_out", "begun\n"), name
        assert "ignored the interrupt" in result.notices[0], (name, result)
        assert "namespace is lost" in result.notices[0]
        assert results[name, "next"].result == "'fresh'", name


def cancelled(workshop, cell: Cell, ready: Path) -> None:
    """Run `cell`, and cancel it when it has opened the FIFO `ready`."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cell.run)
            await trio.to_thread.run_sync(ready.read_bytes, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()

    workshop.run(run)


def test_a_cancelled_cell_is_interrupted_and_still_has_its_partial_result(agent, workshop, tmp_path):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    agent.ok("kept = 1")
    code = f"print('partial')\nopen({str(ready)!r}, 'w').close()\nimport time; time.sleep(3600)"
    cell = workshop.kernels.cell(agent.name, code)
    cancelled(workshop, cell, ready)
    assert (cell.result.status, cell.result.output.text) == ("interrupted", "partial\n")
    assert cell.result.error.name == "KeyboardInterrupt"
    assert agent.ok("kept").result == "1"


def test_a_cell_cancelled_while_it_waits_for_its_turn_is_not_run(agent, workshop, tmp_path):
    gate, ready = tmp_path / "gate", tmp_path / "ready"
    os.mkfifo(gate)
    os.mkfifo(ready)
    first = workshop.kernels.cell(agent.name, f"open({str(ready)!r}, 'w').close()\nopen({str(gate)!r}).read()")
    second = workshop.kernels.cell(agent.name, "ran = True")

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.run)
            await trio.to_thread.run_sync(ready.read_bytes, abandon_on_cancel=True)
            with trio.CancelScope() as scope:
                scope.cancel()
                await second.run()
            await trio.to_thread.run_sync(gate.write_text, "first's result")

    workshop.run(run)
    assert second.result.status == "not_run"
    assert first.result.result == '"first\'s result"'
    assert agent("ran").error.name == "NameError"


def test_a_cell_cancelled_in_its_first_moments_keeps_its_kernel(agent, workshop):
    pid = agent.ok("import os; os.getpid()").result
    codes = ("import time\ntime.sleep(3600)", "import asyncio\nawait asyncio.sleep(3600)", "while True: pass")

    async def run(moments: int) -> list[str]:
        cell = workshop.kernels.cell(agent.name, codes[moments % len(codes)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cell.run)
            for _ in range(moments):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        return cell.result.notices

    for moments in range(60):
        (notice,) = workshop.run(run, moments)
        assert "ignored" not in notice
    assert agent.ok("os.getpid()").result == pid


def test_a_cell_that_catches_its_interrupt_is_struck_once(agent):
    code = "import time\ntry: time.sleep(3600)\nexcept KeyboardInterrupt: print('caught')\ntime.sleep(0.01)\n'went on'"
    result = agent(code, timeout=0.2)
    assert (result.output.text, result.result, result.error) == ("caught\n", "'went on'", None)


def test_cells_of_one_agent_run_in_order_and_those_of_another_do_not_wait(agent, other_agent, workshop, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    cells = [workshop.kernels.cell(agent.name, code) for code in (f"x = open({str(gate)!r}).read()", "x += '1'", "x")]

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for cell in cells:
                nursery.start_soon(cell.run)
                await trio.testing.wait_all_tasks_blocked()
            result = await workshop.kernels.execute(other_agent.name, "'not held up'")
            assert result.result == "'not held up'"
            await trio.to_thread.run_sync(gate.write_text, "0")

    workshop.run(run)
    assert cells[2].result.result == "'01'"


B31 = {
    "import os; os.kill(os.getpid(), 9)": "killed by signal 9 (SIGKILL)",
    "import os; os.kill(os.getpid(), 15)": "killed by signal 15 (SIGTERM)",
    "import os; os._exit(3)": "exited with code 3",
    "import ctypes; ctypes.string_at(0)": "killed by signal 11 (SIGSEGV)",
    "import os; os.abort()": "killed by signal 6 (SIGABRT)",
    "import os; os.execv('/bin/true', ['true'])": "died while the cell ran",
    "import os; os.execv('/bin/sleep', ['sleep', '3600'])": "killed by signal 9 (SIGKILL)",
    "import os; os.closerange(3, 2000); import time; time.sleep(3600)": "killed by signal 9 (SIGKILL)",
    "import threading, os; threading.Thread(target=os._exit, args=(4,)).start(); threading.Event().wait()": "code 4",
}


@pytest.mark.parametrize("code", B31)
def test_b31_a_death_in_a_cell_is_seen_at_once_and_a_fresh_kernel_serves_the_next(agent, other_agent, code):
    other_agent.ok("untouched = 1")
    agent.ok("lost = 1")
    result = agent(f"print('so far')\n{code}")
    assert result.status == "kernel_died"
    assert result.output.head.startswith(b"so far\n")
    assert B31[code] in result.notices[-1]
    assert "namespace is lost" in result.notices[-1]
    assert agent("lost").error.name == "NameError"
    assert other_agent.ok("untouched").result == "1"


def test_b31_an_allocation_beyond_the_limit_is_an_ordinary_error(agent):
    agent.ok("import resource\nkept = 1\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))")
    assert agent("x = bytearray(8 << 30)").error.name == "MemoryError"
    assert agent.ok("kept").result == "1"


def test_a_kernel_that_died_between_cells_is_never_taken_for_the_one_with_the_variables(agent):
    pid = int(agent.ok("import os; os.getpid()").result)
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([pidfd], [], [], 10)
    os.close(pidfd)

    result = agent("open('precious', 'w')")
    assert result.status == "not_run"
    assert "died since the last cell" in result.notices[0]
    assert agent("os").error.name == "NameError"


def test_after_three_recoveries_without_a_completed_cell_there_are_no_more_kernels(agent):
    die = "import os; os._exit(1)"
    assert [agent(die).status for _ in range(3)] == ["kernel_died"] * 3
    agent.ok("'a completed cell starts the count anew'")
    assert [agent(die).status for _ in range(4)] == ["kernel_died"] * 4
    result = agent("1")
    assert result.status == "not_run"
    assert "no more kernels" in result.notices[0]


def test_closing_an_idle_kernel_flushes_files_and_runs_exit_functions(agent, tmp_path):
    written, kept, said = tmp_path / "written", tmp_path / "kept", tmp_path / "said"
    agent.ok(
        f"file = open({str(written)!r}, 'w'); file.write('buffered')\n"
        f"import atexit, pathlib\natexit.register(pathlib.Path({str(said)!r}).write_text, 'bye')\n"
        f"pathlib.file = open({str(kept)!r}, 'w'); pathlib.file.write('in a module')\n"
    )
    agent.close()
    assert written.read_text() == "buffered"
    assert kept.read_text() == "in a module"
    assert said.read_text() == "bye"


def test_closing_a_busy_kernel_kills_it_and_what_it_runs(agent, workshop, tmp_path):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    cell = workshop.kernels.cell(agent.name, f"!echo $$ > {ready}; exec sleep 3600")
    waiting = workshop.kernels.cell(agent.name, "1")

    async def run() -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cell.run)
            pid = int(await trio.to_thread.run_sync(ready.read_text, abandon_on_cancel=True))
            nursery.start_soon(waiting.run)
            await trio.testing.wait_all_tasks_blocked()
            await workshop.kernels.close(agent.name)
        return pid

    pid = workshop.run(run)
    assert not is_alive(pid)
    assert cell.result.status == "kernel_died"
    assert waiting.result.status == "not_run"


def test_what_was_attached_to_a_kernel_ends_with_it(agent):
    pid = int(agent.ok("import subprocess\nchild = subprocess.Popen(['sleep', '3600'])\nchild.pid").result)
    assert agent("import os; os.kill(os.getpid(), 9)").status == "kernel_died"
    assert not is_alive(pid)


@pytest.mark.parametrize(
    "crash",
    ["os._exit(3)", "import ctypes; ctypes.string_at(0)", "os.kill(os.getpid(), 9)", "os.execv('/bin/true', ['x'])"],
)
def test_a_crash_ends_what_was_attached_in_sessions_of_its_own_and_no_daemon(agent, crash, tmp_path, end):
    pids = agent.ok(_ATTACH.format(daemon=tmp_path / "daemon"))
    *attached, daemon = map(int, pids.output.text.split())
    end(daemon)
    result = agent(f"print(subprocess.Popen(['sleep', '3600'], start_new_session=True).pid, flush=True)\n{crash}")
    assert result.status == "kernel_died"
    assert [pid for pid in [*attached, int(result.output.text.split()[0])] if is_alive(pid)] == []
    assert is_alive(daemon)


_ATTACH = """
import os, signal, subprocess, pty
children = [
    subprocess.Popen(["sleep", "3600"], start_new_session=True).pid,
    subprocess.Popen(["sleep", "3600"], preexec_fn=os.setsid).pid,
    os.posix_spawn("/bin/sleep", ["sleep", "3600"], dict(os.environ), setsid=True),
]
if (forked := os.fork()) == 0:
    os.setsid()
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    open("{daemon}.child", "w").write(str(child.pid))
    signal.pause()
if (terminal := pty.fork())[0] == 0:
    signal.pause()
subprocess.run("(setsid sleep 3600 >/dev/null 2>&1 & echo $! >{daemon})", shell=True)
while not (text := open("{daemon}.child").read() if os.path.exists("{daemon}.child") else ""):
    pass
daemon = int(open("{daemon}").read())
while os.getsid(daemon) != daemon:
    pass
print(*children, forked, terminal[0], text, daemon)
"""


def test_a_host_that_dies_takes_no_kernel_along_and_is_replaced(agent, other_agent):
    agent.ok("kept = 1")
    agent.ok("import os; os.kill(os.getppid(), 9)")
    assert other_agent.ok("'from another host'").result == "'from another host'"
    assert agent.ok("kept").result == "1"
    result = agent("os._exit(3)")
    assert result.status == "kernel_died"
    assert agent.ok("1").result == "1"
