import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import trio

from rlm_harness.demo.processes import leftovers


def environment(tmp_path):
    (tmp_path / "tmp").mkdir()
    return os.environ | {"RLM_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}


async def test_the_demo_mends_the_project_and_proves_it(tmp_path):
    done = await trio.run_process(
        [sys.executable, "-m", "rlm_harness", "demo", "--json"],
        env=environment(tmp_path),
        check=False,
        capture_stdout=True,
        capture_stderr=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {event["tool"] for event in events if event["event"] == "tool_started"} == {"ipython", "bash", "edit"}
    tests = [event["content"].splitlines()[-2:] for event in events if "pytest" in str(event.get("content"))]
    assert tests
    verdict = events[-1]
    assert verdict["event"] == "verdict"
    assert verdict["passed"]
    assert any("9 passed" in finding for finding in verdict["findings"])
    assert "processes left: none" in verdict["findings"]
    ledger = Path(next(event["ledger"] for event in events if event["event"] == "session_ended"))
    records = [json.loads(line)["type"] for line in ledger.read_text().splitlines()]
    assert records[-1] == "done"
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_an_interrupted_demo_leaves_nothing(tmp_path):
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                [sys.executable, "-m", "rlm_harness", "demo", "--json"],
                env=environment(tmp_path),
                check=False,
                stdout=subprocess.PIPE,
            )
        )
        seen = b""
        while b"tool_started" not in seen:
            received = await process.stdout.receive_some()
            assert received, seen
            seen += received
        process.send_signal(signal.SIGINT)
        while await process.stdout.receive_some():
            pass
        assert await process.wait() == 130
    assert leftovers(tmp_path, f"RLM_HOME={tmp_path}") == []
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_what_was_left_running_is_found(tmp_path):
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(trio.run_process, ["sleep", "1000"], env={"SOME_MARKER": "here"}, cwd="/", check=False)
        )
        found = leftovers(tmp_path, "SOME_MARKER=here")
        assert f"{process.pid} sleep 1000" in found
        nursery.cancel_scope.cancel()
    assert leftovers(tmp_path, "SOME_MARKER=here") == []
