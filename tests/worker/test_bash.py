"""The bash tool with a real bash: field reports, by number, and what else users rely on."""

from __future__ import annotations

import os
import pty
import re
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.tools import BashResult, OutputChunk
from rlm_worker.environment import workspace_environment
from rlm_worker.processes import Reaper, process_table
from rlm_worker.tools.bash import run_bash

RunBash = Callable[..., Awaitable[BashResult]]


@pytest.fixture
def bash(reaper: Reaper, tmp_path: Path) -> RunBash:
    async def run(command: str, **options: Any) -> BashResult:
        options.setdefault("cwd", str(tmp_path))
        options.setdefault("env", workspace_environment(os.environ))
        return await run_bash(reaper, command, **options)

    return run


def pids(result: BashResult) -> list[int]:
    """The processes that a result names as still running."""
    return [int(notice.split("pid ")[1].split(",")[0]) for notice in result.notices if "pid " in notice]


@pytest.mark.parametrize("redirection", ["", "2>/dev/null", ">/dev/null"])
async def test_b01_a_background_job_that_holds_the_output_does_not_delay_the_result(
    bash: RunBash, redirection: str, end: Callable[[int], None]
) -> None:
    result = await bash(f"sleep 1000 {redirection} & echo done")
    (job,) = pids(result)
    end(job)
    assert (result.exit_code, result.output.text) == (0, "done\n")
    assert process_table.row(job) is not None


async def test_b01_a_job_that_goes_on_writing_is_neither_blocked_nor_killed(
    bash: RunBash, tmp_path: Path, wait_for_end: Callable[[int], bool]
) -> None:
    result = await bash("(while [ ! -e go ]; do echo noise; done; head -c 1000000 /dev/zero && echo ok > done) &")
    (tmp_path / "go").touch()
    for pid in pids(result):
        assert await trio.to_thread.run_sync(wait_for_end, pid)
    assert (tmp_path / "done").read_text() == "ok\n"
    assert (await bash("echo quiet")).output.text == "quiet\n"


@pytest.mark.parametrize(
    "script", ["yes | cat >/dev/null", "sleep 1000 & sleep 1000 | cat", "setsid --wait sleep 1000"]
)
async def test_b04_a_cancelled_command_leaves_no_process(bash: RunBash, script: str) -> None:
    started = trio.Event()
    stop = trio.CancelScope()

    async def show(chunk: OutputChunk) -> None:
        started.set()

    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            await started.wait()
            stop.cancel()

        nursery.start_soon(cancel)
        result = await bash(f"echo $$; {script}", on_output=show, stoppable=lambda: stop)
    session = int(result.output.text)
    assert (result.cancelled, result.timed_out, result.exit_code) == (True, False, None)
    assert [row for row in process_table.table().values() if row.alive and session in (row.session, row.parent)] == []


async def test_cancelling_from_outside_ends_the_command_before_it_is_noticed(bash: RunBash) -> None:
    seen: list[int] = []
    with trio.CancelScope() as scope:

        async def show(chunk: OutputChunk) -> None:
            seen.append(int(chunk.data))
            scope.cancel()

        await bash("echo $$; sleep 1000 | sleep 1000", on_output=show)
    assert scope.cancelled_caught
    assert [row for row in process_table.table().values() if row.alive and row.session == seen[0]] == []


async def test_b13_stdin_is_empty_by_every_name(bash: RunBash) -> None:
    result = await bash("cat; cat /dev/stdin; wc -c < /proc/self/fd/0; read x || echo end", timeout=20)
    assert (result.output.text, result.timed_out) == ("0\nend\n", False)


async def test_b14_there_is_no_terminal_even_if_the_worker_has_one(tmp_path: Path) -> None:
    script = (
        "import os, trio\n"
        "from rlm_worker.processes import open_reaper\n"
        "from rlm_worker.tools.bash import run_bash\n"
        "async def main():\n"
        "    async with open_reaper() as reaper:\n"
        "        result = await run_bash(reaper, 'read x </dev/tty; echo got:$x', cwd='/', env=dict(os.environ))\n"
        "        open('result', 'w').write(result.output.text)\n"
        "trio.run(main)\n"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", script]
    worker = subprocess.Popen(["setsid", "--ctty", *command], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert await trio.to_thread.run_sync(worker.wait) == 0
    os.set_blocking(ours, False)
    with pytest.raises(OSError, match=r"Input/output error|temporarily unavailable"):
        os.read(ours, 1000)  # nothing was written to the operator's terminal
    os.close(ours)
    result = (tmp_path / "result").read_text()
    assert "/dev/tty: No such device or address" in result
    assert result.endswith("got:\n")


async def test_b19_bytes_that_are_no_text_are_kept_and_cost_nothing_else(bash: RunBash) -> None:
    result = await bash("printf '\\325\\377\\000abc' >&2; exit 3")
    assert (result.exit_code, result.output.head) == (3, b"\xd5\xff\x00abc")
    assert result.output.text == "\ufffd\ufffd\x00abc"
    noise = await bash("head -c 100000 /dev/urandom")
    assert (noise.exit_code, noise.output.bytes, len(noise.output.head)) == (0, 100_000, 100_000)


async def test_b20_four_byte_characters_through_odd_writes_stay_whole(bash: RunBash) -> None:
    script = "import os\ndata = '😀'.encode() * 50000\nfor i in range(0, len(data), 999): os.write(1, data[i:i + 999])"
    result = await bash(f'python3 -c "{script}"')
    assert (result.output.text, result.output.chars) == ("😀" * 50_000, 50_000)


async def test_b22_text_is_utf8_whatever_the_locale(bash: RunBash) -> None:
    env = workspace_environment({"PATH": os.environ["PATH"], "LANG": "C", "LC_ALL": "POSIX"})
    result = await bash("python3 -c 'print(chr(0x4e16))'; echo 世; printf 世 | wc -m", env=env)
    assert result.output.text == "世\n世\n1\n"


async def test_b25_a_flood_costs_no_memory(bash: RunBash) -> None:
    await bash("yes | head -c 3000000")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await bash("yes | head -c 100000000")
    assert (result.output.bytes, result.output.lines) == (100_000_000, 50_000_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024


async def test_b25_a_prompt_loop_on_empty_stdin_is_stopped_by_its_timeout(bash: RunBash) -> None:
    result = await bash("while :; do read x; echo enter:; done", timeout=0.3)
    assert result.timed_out
    assert result.output.head.startswith(b"enter:\nenter:\n")


async def test_b57_a_timeout_gives_what_was_printed_and_the_next_command_works(bash: RunBash) -> None:
    result = await bash("echo started; sleep 1000", timeout=0.3)
    assert (result.output.text, result.timed_out, result.cancelled) == ("started\n", True, False)
    assert (result.exit_code, result.signal) == (None, 15)
    assert (await bash("echo alive")).output.text == "alive\n"


async def test_b64_commands_see_no_secret_of_the_worker(bash: RunBash) -> None:
    secrets = {"FAKE_API_KEY": "sesame", "RLM_TOKEN": "sesame", "SSH_AUTH_SOCK": "/sesame"}
    env = workspace_environment({**os.environ, **secrets}) | {"GIVEN": "by the session"}
    result = await bash("env; cat /proc/$PPID/environ", env=env)
    assert "sesame" not in result.output.text
    assert "GIVEN=by the session" in result.output.text


async def test_b67_a_directory_that_was_removed_is_replaced_and_told(bash: RunBash, tmp_path: Path) -> None:
    gone, fallback = tmp_path / "gone", tmp_path / "fallback"
    fallback.mkdir()
    result = await bash("pwd", cwd=str(gone), fallback_directory=lambda: str(fallback))
    assert result.output.text == f"{fallback}\n"
    (notice,) = result.notices
    assert str(gone) in notice
    assert str(fallback) in notice
    with pytest.raises(CallError, match="gone") as refused:
        await bash("pwd", cwd=str(gone))
    assert refused.value.code == "not_found"


async def test_b68_a_command_needs_no_disk(bash: RunBash, tmp_path: Path) -> None:
    env = workspace_environment(os.environ) | {"TMPDIR": str(tmp_path / "missing"), "HOME": "/missing"}
    result = await bash("echo hi", cwd="/proc", env=env)
    assert (result.exit_code, result.output.text, result.notices) == (0, "hi\n", [])


@pytest.mark.parametrize("size", [100_000, 131_071, 131_072, 200_000, 5_000_000])
async def test_b69_the_size_of_a_script_does_not_matter(bash: RunBash, tmp_path: Path, size: int) -> None:
    result = await bash(f"cat <<'EOF' > written\n{'x' * size}\nEOF\nexit 4")
    assert (result.exit_code, result.output.text) == (4, "")
    assert (tmp_path / "written").stat().st_size == size + 1


async def test_b69_what_is_really_too_long_is_the_shells_own_error(bash: RunBash) -> None:
    result = await bash("/bin/echo $(seq 1 1000000) > /dev/null")
    assert result.exit_code == 126
    assert "Argument list too long" in result.output.text
    with pytest.raises(CallError, match="too long"):
        await bash("true", env={"PATH": os.environ["PATH"], "LARGE": "x" * 200_000})


SCRIPTS = [
    "cat <<'EOF' > f\nhi\nEOF",
    "cat <<EOF\nunfinished",
    "echo 'unclosed",
    'echo "unclosed\n\n',
    "echo a\\",
    "printf no-newline; exit 7",
    "set -e; false; echo no",
    "set -u; echo $nothing; echo no",
    "exec echo x",
    "exit",
    "exit 300",
    "echo a\n# a comment as the last line",
    "echo EOF; echo 'exit code 5'",
    "nothing-like-this",
    "echo a\nfoo\n)",
    "if",
    "$(",
    "f() {\n nothing\n echo $LINENO\n}\nf\necho $LINENO",
    "return 3",
    "trap 'echo ERR $LINENO' ERR\nfalse",
    "set -v\necho a",
    "set -x\necho a",
    "echo $- $#",
    "false | true; echo ${PIPESTATUS[@]}",
    "kill -TERM $$",
    "echo ${FUNCNAME[@]}",
    "exec 3</etc/passwd; read -u 3 x; echo ${x%%:*}",
    "\r\necho a\r",
    "shopt -s expand_aliases; alias q='echo quick'\nq",
    "#!/bin/sh\necho $BASH_VERSION",
    "exec >/dev/null; echo lost",
    "echo a; exec 2>&1 1>&-; echo b",
    "\u00fc=1",
]


@pytest.mark.parametrize("script", SCRIPTS)
async def test_b77_every_script_does_what_it_does_as_a_file(bash: RunBash, tmp_path: Path, script: str) -> None:
    file = tmp_path / "script-file"
    file.write_bytes(script.encode())
    reference = subprocess.run(
        ["bash", file],
        cwd=tmp_path,
        env=workspace_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    result = await bash(script)
    returncode = result.exit_code if result.signal is None else -result.signal
    name = re.compile(rb"/proc/\d+/fd/\d+")  # what a script in memory is called
    assert returncode == reference.returncode
    assert name.sub(bytes(file), result.output.head) == reference.stdout


async def test_b77_a_background_writer_does_not_reach_into_the_next_output(
    bash: RunBash, end: Callable[[int], None]
) -> None:
    result = await bash("(while :; do echo noise; done) & echo first; exit 2")
    for pid in pids(result):
        end(pid)
    assert result.exit_code == 2
    assert "first" in result.output.text
    assert (await bash("echo second")).output.text == "second\n"


@pytest.mark.parametrize(("command", "timeout"), [("", None), (" \n\t", None), ("true", 0), ("true", float("nan"))])
async def test_senseless_calls_are_refused(bash: RunBash, command: str, timeout: float | None) -> None:
    with pytest.raises(CallError) as refused:
        await bash(command, timeout=timeout)
    assert refused.value.code == "invalid_argument"


async def test_output_written_just_before_the_end_is_never_lost(bash: RunBash) -> None:
    for _ in range(20):
        result = await bash("head -c 65536 /dev/zero; printf end")
        assert result.output.bytes == 65_539
        assert result.output.head.endswith(b"end")


async def test_output_that_waits_in_the_pipe_for_a_slow_receiver_is_not_lost_at_the_end(bash: RunBash) -> None:
    async def never(chunk: OutputChunk) -> None:
        await trio.sleep_forever()

    result = await bash("head -c 1100000 /dev/zero; printf end", on_output=never)
    assert result.output.bytes == 1_100_003
    assert result.output.tail.endswith(b"end")


async def test_live_output_comes_while_the_command_runs(bash: RunBash, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    shown: list[bytes] = []

    async def show(chunk: OutputChunk) -> None:
        shown.append(chunk.data)
        if len(shown) == 1:
            await trio.to_thread.run_sync((tmp_path / "go").write_text, "\n")

    result = await bash("echo first; read < go; echo second", on_output=show)
    assert shown == [b"first\n", b"second\n"]
    assert result.output.text == "first\nsecond\n"


async def test_a_path_through_a_link_is_kept_as_it_is(bash: RunBash, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert (await bash("pwd", cwd=str(tmp_path / "link"))).output.text == f"{tmp_path}/link\n"
