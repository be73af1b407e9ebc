"""What a kernel process starts with: directory, environment, descriptors, session; and hosts that cannot serve."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from rlm_wire.errors import CallError
from rlm_worker.kernel import open_kernel_host, open_kernels
from rlm_worker.processes import open_reaper


def test_cells_start_in_the_workspace_with_exactly_its_environment_and_write_no_profile(agent, workshop):
    assert agent.ok("import os; os.getcwd()").result == repr(str(workshop.cwd))
    assert agent.ok("sorted(os.environ)").result == "['HOME', 'LANG', 'PATH', 'RLM_PROCESS']"
    agent.ok("%bookmark here /\n%history -n")
    assert list(workshop.cwd.iterdir()) == []


def test_a_kernel_holds_only_its_own_descriptors_and_none_below_300_but_the_standard_ones(agent):
    agent.ok("import os\nfds = [n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)]")
    low = eval(agent.ok("[int(n) for n in fds if int(n) < 300]").result)
    links = [agent.ok(f"os.readlink('/proc/self/fd/{n}')").result for n in low if n > 2]
    assert [link for link in links if "anon_inode" not in link and "socket" not in link] == []  # its two event loops
    assert agent.ok("os.readlink('/proc/self/fd/0')").result == "'/dev/null'"
    assert agent.ok("os.readlink('/proc/self/fd/1') == os.readlink('/proc/self/fd/2')").result == "True"
    assert agent.ok("!ls /proc/self/fd | wc -w").output.text.strip() == "4"  # 0, 1, 2, and the listing's own


def test_a_forked_child_does_not_hold_the_wire(agent):
    count = "len([n for n in os.listdir('/proc/self/fd') if int(n) >= 300 and {link}.startswith('socket')])"
    count = count.format(link="os.path.realpath('/proc/self/fd/' + n).rpartition('/')[2]")
    agent.ok(f"import os\npid = os.fork()\nif pid == 0: os._exit({count})")
    assert agent.ok("os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])").result == "0"
    assert agent.ok(count).result == "1"


def test_a_kernel_leads_its_own_session_without_a_terminal(agent):
    assert agent.ok("import os\nos.getsid(0) == os.getpid() == os.getpgid(0)").result == "True"


def test_kernels_forked_from_one_host_do_not_share_their_randomness(agent, other_agent):
    draw = "import random, uuid, os\nrandom.random(), uuid.uuid4(), os.urandom(4)"
    assert agent.ok(draw).result != other_agent.ok(draw).result


def test_signals_have_their_defaults_so_that_commands_can_be_stopped(agent):
    code = "import signal\n[s.name for s in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP) if signal.getsignal(s)]"
    assert agent.ok(code).result == "[]"
    assert agent.ok("signal.pthread_sigmask(signal.SIG_BLOCK, [])").result == "set()"


async def test_a_missing_directory_is_named_and_cells_run_in_the_nearest_one_above(tmp_path):
    env = {"PATH": os.environ["PATH"]}
    with trio.fail_after(60):
        async with (
            open_reaper() as reaper,
            open_kernel_host(reaper, env=env) as host,
            open_kernels(host, reaper, cwd=str(tmp_path / "gone" / "deeper"), env=env) as kernels,
        ):
            result = await kernels.execute("a", "import os; os.getcwd()")
            assert result.result == repr(str(tmp_path))
            assert "gone/deeper is not there" in result.notices[0]


async def test_a_module_of_the_workspace_is_for_cells_and_never_for_the_host(tmp_path):
    (tmp_path / "trio.py").write_text("raise SystemExit('the workspace took over the host')")
    (tmp_path / "mine.py").write_text("value = 'from the workspace'")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "apart.py").write_text("value = 'by PYTHONPATH'")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "lib")}
    with trio.fail_after(60):
        async with (
            open_reaper() as reaper,
            open_kernel_host(reaper, env={}) as host,
            open_kernels(host, reaper, cwd=str(tmp_path), env=env) as kernels,
        ):
            assert (await kernels.execute("a", "import mine; mine.value")).result == "'from the workspace'"
            assert (await kernels.execute("a", "import apart; apart.value")).result == "'by PYTHONPATH'"


async def test_without_ipython_the_answer_is_how_to_install_it(tmp_path):
    (tmp_path / "IPython").mkdir()
    (tmp_path / "IPython" / "__init__.py").write_text("raise ImportError('No module named IPython')")
    with trio.fail_after(60):
        async with open_reaper() as reaper, open_kernel_host(reaper, env={"PYTHONPATH": str(tmp_path)}) as host:
            with pytest.raises(CallError, match="worker") as caught:
                await host.warm()
            assert caught.value.code == "unimplemented"
            async with open_kernels(host, reaper, cwd="/", env={}) as kernels:
                result = await kernels.execute("a", "1")
                assert result.status == "not_run"
                assert "pip install" in result.notices[0]


async def test_cancelling_everything_leaves_no_kernel_and_no_host_behind(tmp_path):
    pids = []
    with trio.fail_after(60):
        async with open_reaper() as reaper:
            with trio.CancelScope() as scope:
                async with (
                    open_kernel_host(reaper, env={}) as host,
                    open_kernels(host, reaper, cwd=str(tmp_path), env={"PATH": os.environ["PATH"]}) as kernels,
                ):
                    result = await kernels.execute("a", "import os, subprocess\nos.getpid(), os.getppid()")
                    pids = list(eval(result.result))
                    result = await kernels.execute("a", "subprocess.Popen(['sleep', '3600']).pid")
                    pids.append(int(result.result))
                    scope.cancel()
                    await trio.sleep_forever()
            assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []  # noqa: PTH110


DAEMON = """
echo $$ > {name}.pid
read < {name}.gate
echo "more than the pipe holds: $(printf %1000000d 0)" && echo written > {name}.said
"""


async def test_a_daemon_that_a_cell_left_can_write_on_after_its_kernel_and_after_the_worker(tmp_path: Path) -> None:
    """B01, of cells: what still holds the output pipe is neither killed nor blocked by it."""
    names = ("kernel", "worker")
    leave = "import subprocess\nfor name in {names}: subprocess.run(['bash', '-c', f'setsid bash {{name}}.sh &'])"
    for name in names:
        (tmp_path / f"{name}.sh").write_text(DAEMON.format(name=name))
        for fifo in ("pid", "gate"):
            os.mkfifo(tmp_path / f"{name}.{fifo}")

    async def started(name: str) -> int:
        return os.pidfd_open(int(await trio.to_thread.run_sync((tmp_path / f"{name}.pid").read_text)))

    async def goes_on(name: str, daemon: int) -> None:
        await trio.to_thread.run_sync((tmp_path / f"{name}.gate").write_text, "go\n")
        await trio.lowlevel.wait_readable(daemon)
        os.close(daemon)
        assert (tmp_path / f"{name}.said").read_text() == "written\n"

    env = {"PATH": os.environ["PATH"]}
    async with (
        open_reaper() as reaper,
        open_kernel_host(reaper, env=env) as host,
        open_kernels(host, reaper, cwd=str(tmp_path), env=env) as kernels,
    ):
        assert (await kernels.execute("a", leave.format(names=names))).status == "ok"
        daemons = {name: await started(name) for name in names}
        await kernels.close("a")
        await goes_on("kernel", daemons["kernel"])
        assert (await kernels.execute("a", "1")).output.text == ""
    await goes_on("worker", daemons["worker"])
