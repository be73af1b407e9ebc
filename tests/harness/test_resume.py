"""`rlm-harness resume` after kill -9, with a real worker, a real model server and real kernels."""

import json
import signal
import stat
import subprocess
import sys
from functools import partial

import pytest
import trio

from rlm_harness.events import Usage
from rlm_harness.ledger import records
from rlm_harness.ledger.history import read_history
from rlm_harness.ledger.setup import Setup, read_setup, write_setup
from rlm_harness.ledger.writer import create_ledger


class Runs:
    """Runs of `rlm-harness` whose sessions are in one place."""

    def __init__(self, command, model_server, nursery):
        self.command = command
        self.server = model_server
        self.nursery = nursery

    def sessions(self):
        return list((self.command.place / "home" / "sessions").iterdir())

    @property
    def directory(self):
        (directory,) = self.sessions()
        return directory

    async def kill_when(self, *arguments, seen, before=None):
        """Start `rlm-harness`, and kill it when `seen` is among its events and `before()` has been done."""
        process = await self.nursery.start(
            partial(
                trio.run_process,
                [sys.executable, "-m", "rlm_harness", *arguments, "--json"],
                env=self.command.environment(),
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        events = b""
        while seen.encode() not in events:
            received = await process.stdout.receive_some()
            assert received, (events, await process.stderr.receive_some())
            events += received
        if before is not None:
            await before()
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def resume(self, *arguments, session=None, **changes):
        return await trio.run_process(
            [sys.executable, "-m", "rlm_harness", "resume", session or self.directory.name[:6], *arguments],
            env=self.command.environment(**changes),
            check=False,
            capture_stdout=True,
            capture_stderr=True,
        )

    def run(self, *more):
        return ["run", "--model", "m", "--base-url", self.server.base_url, *more, "go"]


@pytest.fixture
async def runs(command, model_server):
    async with trio.open_nursery() as nursery:
        yield Runs(command, model_server, nursery)
        nursery.cancel_scope.cancel()


def cell(script, code, **more):
    return script.calls("ipython", {"code": code}, **more)


async def test_a_killed_session_goes_on_in_the_workspace_that_it_left(runs, model_server, script, worker_url):
    """The kernel keeps its variables, a job runs on, and the model is told what is known and what is not."""
    begin = "secret = 6 * 7; job = await rlm.shell.run('echo out; exec sleep 1000', yield_after=0); print('begun')"
    model_server.answers = [cell(script, begin), cell(script, "print('up', flush=True)\nimport time; time.sleep(1000)")]
    await runs.kill_when(*runs.run("--workspace", worker_url), seen='"up')
    setup = runs.directory / "setup.json"
    assert stat.S_IMODE(setup.stat().st_mode) == 0o600
    assert read_setup(runs.directory).secret not in (runs.directory / "messages.jsonl").read_text()
    model_server.answers = [cell(script, "print(secret, (await job.info()).status)"), script.says("It is 42.")]
    done = await runs.resume()
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"It is 42." in done.stdout
    first, second = model_server.requests[2:]
    call, unknown, told = first["messages"][-3:]
    assert call["tool_calls"][0]["id"] == unknown["tool_call_id"]
    assert unknown["content"].startswith("[outcome unknown: the harness was killed")
    for part in ("your kernel has its variables", "Job job-1: running: echo out", "is not known"):
        assert part in told["content"]
    assert second["messages"][-1]["content"] == "42 running\n"
    history = read_history(runs.directory)
    (resumed,) = history.of("resumed")
    assert (resumed["workspace"], resumed.get("torn")) == ("adopted", None)
    assert [event["stop"] for event in history.of("done")] == ["answered"]
    assert json.loads((runs.directory / "meta.json").read_bytes())["turns"] == 4


async def test_without_the_worker_the_conversation_goes_on_and_what_is_lost_is_said(runs, model_server, script):
    model_server.answers = [cell(script, "secret = 42; print('up')"), script.says("")]
    model_server.answers[1].data, model_server.answers[1].stall = script.events(end=False, done=False), True
    await runs.kill_when(
        *runs.run("--cwd", str(runs.command.place / "project")),
        seen='"turn":2',
        before=partial(model_server.wait_asked, 2),
    )
    with (runs.directory / "messages.jsonl").open("ab") as ledger:
        ledger.write(b'{"type":"assistant","tu')
    model_server.answers = [cell(script, "import os; print('secret' in globals(), os.getcwd())"), script.says("Lost.")]
    done = await runs.resume("--json")
    assert done.returncode == 0, done.stderr
    told = model_server.requests[2]["messages"][-1]["content"]
    assert "opened anew" in told
    assert model_server.requests[3]["messages"][-1]["content"] == f"False {runs.command.place / 'project'}\n"
    (resumed,) = read_history(runs.directory).of("resumed")
    assert (resumed["workspace"], resumed["torn"]) == ("new", 23)


async def test_children_and_inboxes_come_back(runs, model_server, script, worker_url):
    """One child had answered, one was at work: its answer is there, and it goes on."""
    begin = (
        "done = await rlm.agent.spawn('first', name='done')\n"
        "await done.wait()\n"
        "busy = await rlm.agent.spawn('second', name='busy')\n"
        "print(await rlm.agent.list(), flush=True)"
    )
    waiting = script.says("")
    waiting.data, waiting.stall = script.events(end=False, done=False), True

    model_server.by_task = {
        "go": [cell(script, begin), waiting],
        "first": [script.says("One.")],
        "second": [cell(script, "kept = 7; print('kept')"), waiting],
    }
    await runs.kill_when(*runs.run("--workspace", worker_url), seen="kept", before=partial(model_server.wait_asked, 5))
    look = (
        "from pprint import pprint\n"
        "done, busy = await rlm.agent.get('done'), await rlm.agent.get('busy')\n"
        "print((await done.result()).answer, (await busy.result()).answer)\n"
        "print(sorted(event.type for event in await rlm.inbox.list(unread_only=False)))"
    )
    model_server.by_task = {
        "go": [cell(script, look), script.says("Both.")],
        "second": [cell(script, "print(kept)"), script.says("Two.")],
    }
    before = len(model_server.requests)
    done = await runs.resume()
    assert done.returncode == 0, (done.stderr, done.stdout)
    shown = [request["messages"] for request in model_server.requests[before:]]
    mine = [messages for messages in shown if messages[1]["content"] == "go"]
    theirs = [messages for messages in shown if messages[1]["content"] == "second"]
    told, unread = (message["content"] for message in mine[0][-2:])
    assert "'done': completed" in told
    assert "'busy': running" in told
    assert "You have 1 unread event" in unread
    assert mine[1][-1]["content"] == "One. Two.\n['agent.completed', 'agent.completed']\n"
    assert "your kernel has its variables" in theirs[0][-1]["content"]
    assert theirs[1][-1]["content"] == "7\n"


async def test_a_session_that_has_ended_goes_on_with_another_task(runs, model_server, script):
    model_server.answers = [script.says("First."), script.says("Second.")]
    await runs.command.run()
    done = await runs.resume("and now?", "--model", "other")
    assert done.returncode == 0, done.stderr
    request = model_server.requests[1]
    assert request["model"] == "other"
    texts = [message["content"] for message in request["messages"][1:]]
    assert (texts[0], texts[1], texts[3]) == ("go", "First.", "and now?")


async def test_a_session_goes_on_with_the_skills_that_it_was_begun_with(runs, model_server, script):
    model_server.answers = [script.says("First."), cell(script, "print(edit.__name__)\nbash"), script.says("Second.")]
    await runs.command.run("--skills", "edit")
    done = await runs.resume("more")
    assert done.returncode == 0, done.stderr
    shown = model_server.requests[2]["messages"][-1]["content"]
    assert shown.startswith("edit\n")
    assert "NameError: name 'bash' is not defined" in shown


async def recorded(place):
    """A session that has ended, as its files tell."""
    usage = Usage(1, 1)
    said = [{"role": "system", "content": ""}, {"role": "user", "content": "go"}, {"role": "assistant", "content": "."}]
    async with create_ledger(place / "home" / "sessions") as ledger:
        await ledger.append(records.System(message=said[0]))
        await ledger.append(records.User(turn=0, message=said[1]))
        await ledger.append(records.Assistant(turn=1, message=said[2], finish_reason="stop", usage=usage, duration=0.0))
        await ledger.append(records.Done(stop="answered", answer=".", usage=usage, turns=1))
    return ledger.directory


@pytest.mark.parametrize(
    ("trouble", "problem"),
    [
        ("unknown", "there is no session 'x'"),
        ("ended", "nothing is under way in session"),
        ("damaged", "this session cannot be resumed: line "),
        ("old", "name the --model"),
        ("no key", "no API key"),
    ],
)
async def test_what_cannot_be_resumed_is_said_in_one_line(runs, trouble, problem):
    directory = await recorded(runs.command.place)
    if trouble != "old":
        write_setup(directory, Setup("m", "https://api.openai.com/v1" if trouble == "no key" else "http://[::1]:9/v1"))
    if trouble == "damaged":
        with (directory / "messages.jsonl").open("ab") as ledger:
            ledger.write(b"{}\n")
    task = [] if trouble == "ended" else ["more"]
    changes = {"OPENAI_API_KEY": ""} if trouble == "no key" else {}
    done = await runs.resume(*task, session="x" if trouble == "unknown" else None, **changes)
    assert done.returncode == 2
    assert problem in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == b""


async def test_a_session_that_runs_is_not_resumed_by_a_second_harness(runs, model_server, script):
    waiting = script.says("")
    waiting.data, waiting.stall = script.events(end=False, done=False), True
    model_server.answers = [waiting]

    async def resume():
        done = await runs.resume()
        assert done.returncode == 2
        assert "is in use by another process" in done.stderr.decode()

    await runs.kill_when(*runs.run(), seen="turn_started", before=resume)


FULL = """
import os, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
os.execv(sys.executable, [sys.executable, "-m", "rlm_harness", *sys.argv[2:]])
"""
"""Runs `rlm-harness` with room for that many bytes in each file, which it meets as it would a full disk."""


async def test_a_disk_that_is_full_from_the_start_is_said_in_one_line(runs):
    done = await trio.run_process(
        [sys.executable, "-c", FULL, "10", *runs.run()],
        env=runs.command.environment(),
        check=False,
        capture_stdout=True,
        capture_stderr=True,
    )
    said = done.stderr.decode()
    assert done.returncode == 2, said
    assert said.startswith("rlm-harness: cannot write ")
    assert len(said.splitlines()) == 1


async def test_a_full_disk_ends_the_session_in_words_and_it_goes_on_when_there_is_room(runs, model_server, script):
    model_server.answers = [
        script.calls("bash", {"command": "echo small"}),
        script.calls("bash", {"command": "head -c 100000 /dev/zero | tr '\\0' x"}),
    ]
    place = str(runs.command.place / "project")
    done = await trio.run_process(
        [sys.executable, "-c", FULL, "50000", *runs.run("--cwd", place)],
        env=runs.command.environment(),
        check=False,
        capture_stdout=True,
        capture_stderr=True,
    )
    said = done.stderr.decode()
    assert done.returncode == 1, said
    assert f"cannot write {runs.directory}/messages.jsonl: File too large; the session ends here" in said
    assert f"rlm-harness resume {runs.directory.name} goes on with it when that is mended" in said
    assert len(said.splitlines()) == 1
    before = read_history(runs.directory)
    assert [event["tool"] for event in before.of("tool_result")] == ["bash"]
    assert before.torn
    model_server.answers = [script.says("There is room.")]
    done = await runs.resume()
    assert done.returncode == 0, done.stderr
    shown = model_server.requests[2]["messages"]
    assert shown[3]["content"] == "small\n"
    assert shown[5]["content"].startswith("[outcome unknown")
    after = read_history(runs.directory)
    assert after.events[: len(before.events)] == before.events
    assert after.of("resumed")[0]["torn"] == before.torn
