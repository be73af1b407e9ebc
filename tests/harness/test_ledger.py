import json
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_harness.events import Usage
from rlm_harness.ledger import records
from rlm_harness.ledger.files import is_in_use, sessions_directory
from rlm_harness.ledger.history import LedgerDamaged, read_history
from rlm_harness.ledger.writer import Ledger, create_ledger, reopen_ledger
from rlm_harness.secrets import UserError

DECODER = msgspec.json.Decoder(records.Record)


def read(path: Path) -> list[records.Record]:
    return [DECODER.decode(line) for line in path.read_bytes().splitlines()]


def text(content, role="user"):
    return {"role": role, "content": content}


def user(content):
    return records.User(turn=0, message=text(content))


async def test_a_session_is_a_new_private_directory_below_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLM_HOME", str(tmp_path / "home"))
    async with create_ledger() as first, create_ledger() as second:
        assert first.path.parent.parent == sessions_directory() == tmp_path / "home" / "sessions"
        assert first.session != second.session
        assert len(first.session) == 12
        assert int(first.session, 16) >= 0
        assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(first.directory.stat().st_mode) == 0o700


def test_without_a_setting_sessions_are_kept_in_the_home_directory(monkeypatch):
    monkeypatch.delenv("RLM_HOME", raising=False)
    monkeypatch.setenv("HOME", "/somebody")
    assert sessions_directory() == Path("/somebody/.rlm/sessions")


async def test_records_are_on_disk_when_append_returns(tmp_path):
    async with create_ledger(tmp_path) as ledger:
        await ledger.append(user("hi"))
        assert [type(record).__name__ for record in read(ledger.path)] == ["ContextWindow", "User"]


async def test_every_record_survives_the_way_to_disk_and_back(tmp_path):
    every: list[records.Record] = [
        records.System(message=text("s", "system")),
        user("hi"),
        records.EmptyReplyNudge(message=text("n"), provenance={"kind": "nudge"}),
        records.PlanReplyNudge(message=text("n"), provenance={"kind": "nudge"}),
        records.KernelRecovery(message=text("r"), provenance={"kind": "recovery"}),
        records.Assistant(
            turn=1, message=text("a", "assistant"), finish_reason="stop", usage=Usage(1, 2), duration=0.5
        ),
        records.ToolResult(turn=1, tool="bash", duration=0.1, message=text("out\ud7ff\u2028", "tool")),
        records.ContextMessage(message=text("o", "tool"), source_message_index=6),
        records.DiscardedAssistant(
            turn=1, message=text("a", "assistant"), finish_reason="length", usage=Usage(1, 2), duration=0.5
        ),
        records.Compaction(
            reason="overflow",
            turn=1,
            summary="s",
            summary_chars=1,
            dropped_chars=2,
            turns_since_last=1,
            attempts=2,
            usage=Usage(1, 2),
            duration=0.5,
            uncovered=3,
            summary_message_index=7,
            window=1,
        ),
        records.PromptRollback(prompt_id="p", start_turn=0, attempted_turns=1, reason="cancelled"),
        records.Done(stop="answered", answer="a", usage=Usage(1, 2), turns=1),
    ]
    async with create_ledger(tmp_path) as ledger:
        for record in every:
            await ledger.append(record)
        assert read(ledger.path)[1:] == every


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["message", "aside", "rollback", "done"]), max_size=20))
def test_indices_and_windows_are_contiguous_and_closed_windows_never_change(steps):
    async def play(directory: Path) -> None:
        async with create_ledger(directory) as ledger:
            for step in steps:
                if step == "rollback":
                    await ledger.open_window("rollback", ledger.context[:1])
                elif step == "done":
                    await ledger.append(records.Done(stop="answered", answer="", usage=Usage(), turns=0))
                else:
                    await ledger.append(user(step), in_context=step == "message")
            check_invariants(read(ledger.path), ledger)

    with tempfile.TemporaryDirectory() as directory:
        trio.run(play, Path(directory))


def check_invariants(written: list[records.Record], ledger: Ledger) -> None:
    messages, current, context = 0, -1, []
    for record in written:
        assert record.id
        assert record.timestamp > 0
        if isinstance(record, records.ContextWindow):
            current += 1
            assert record.window == current
            assert all(index < messages for index in record.message_indices)
            context = list(record.message_indices)
        elif hasattr(record, "message"):
            assert record.message_index == messages
            messages += 1
            assert record.window in (None, current)
            if record.window is not None:
                context.append(record.message_index)
        else:
            assert record.message_index is None
    assert ledger.context == context
    history = read_history(ledger.directory)
    assert (len(history.events), len(history.messages), len(history.windows)) == (len(written), messages, current + 1)
    assert history.windows[-1].message_indices == context


async def test_records_of_several_tasks_do_not_mix(tmp_path):
    async with create_ledger(tmp_path) as ledger:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ledger.append, user("x" * number * 100))
        check_invariants(read(ledger.path), ledger)


async def test_a_cancelled_append_is_whole(tmp_path):
    async with create_ledger(tmp_path) as ledger:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ledger.append(user("x" * 100_000))
        assert len(read(ledger.path)) == 2


async def test_meta_is_replaced_in_one_step(tmp_path):
    async with create_ledger(tmp_path) as ledger:
        await ledger.write_meta({"status": "running"})
        await ledger.write_meta({"status": "answered", "usage": Usage(1, 2)})
        assert json.loads((ledger.directory / "meta.json").read_text())["status"] == "answered"
        assert sorted(path.name for path in ledger.directory.iterdir()) == ["messages.jsonl", "meta.json"]


async def test_a_place_that_cannot_be_written_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="RLM_HOME names another place"):
        async with create_ledger(tmp_path / "file" / "sessions"):
            pass


FULL_DISK = """
import resource, sys, trio
from pathlib import Path
from rlm_harness.ledger import records
from rlm_harness.ledger.writer import LedgerError, create_ledger

async def main():
    async with create_ledger(Path(sys.argv[1])) as ledger:
        record = lambda: records.User(turn=0, message={"role": "user", "content": "x" * 3000})
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        told = []
        for _ in range(5):
            try:
                await ledger.append(record())
            except LedgerError as error:
                told.append(str(error))
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(ledger.path, len(told), told[0], sep="\\n")

trio.run(main)
"""


def test_a_failed_write_poisons_the_ledger_and_loses_nothing_recorded_before(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], capture_output=True, text=True, check=True)
    path, failures, message = done.stdout.splitlines()
    lines = Path(path).read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    assert len([DECODER.decode(line) for line in whole]) == 3
    assert lines[-1] not in whole  # torn, and nothing glued to it although there was room again
    assert failures == "3"
    assert "what was recorded before is kept" in message


async def fill(ledger: Ledger) -> None:
    await ledger.append(records.System(message=text("s", "system")))
    await ledger.append(user("first"))
    await ledger.append(user("aside"), in_context=False)
    await ledger.open_window("rollback", [0])
    await ledger.append(user("second"))


async def test_a_ledger_is_read_back_as_events_messages_and_windows(tmp_path):
    async with create_ledger(tmp_path) as ledger:
        await fill(ledger)
        history = read_history(ledger.directory)
    assert [event["type"] for event in history.events[:3]] == ["context_window", "system", "user"]
    assert [message["content"] for message in history.messages] == ["s", "first", "aside", "second"]
    assert [(w.reason, [m["content"] for m in w.messages]) for w in history.windows] == [
        ("start", ["s", "first"]),
        ("rollback", ["s", "second"]),
    ]
    assert [record["message"]["content"] for record in history.user_messages()] == ["first", "aside", "second"]
    assert (history.size, history.torn) == (ledger.size, 0)


async def test_a_torn_last_line_is_no_part_of_the_history(tmp_path):
    async with create_ledger(tmp_path) as ledger:
        await fill(ledger)
        whole = read_history(ledger.directory)
        data = ledger.path.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(data)):
        ledger.path.write_bytes(data[:end])
        history = read_history(ledger.directory)
        assert history.events == whole.events[:-1]
        assert (history.size, history.torn) == (last, end - last)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"type":"user","message":{},"message_index":5,"window":1}', "message 5 follows 4 others"),
        (b'{"type":"user","message":{}}', "message None follows"),
        (b'{"type":"user","message":{},"message_index":4,"window":0}', "window 0 is not open"),
        (b'{"type":"context_window","window":3,"message_indices":[]}', "window 3 follows 2 others"),
        (b'{"type":"context_window","window":2,"message_indices":[4]}', "a message that is not there"),
        (b"{", "truncated"),
        (b'"text"', "object"),
        (b"", "truncated"),
        (b'{"type":"x","deep":' + b"[" * 100_000, "recursion"),
        (b'{"type":"\xff"}', "utf-8"),
    ],
)
async def test_a_ledger_that_is_none_is_refused_with_the_line_and_the_reason(tmp_path, line, problem):
    async with create_ledger(tmp_path) as ledger:
        await fill(ledger)
    with ledger.path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(LedgerDamaged, match=f"(?i)line 7 of .*{problem}"):
        read_history(ledger.directory)
    with pytest.raises(UserError, match="cannot be resumed: line 7"):
        async with reopen_ledger(ledger.directory):
            pass
    assert ledger.path.read_bytes().endswith(line + b"\n")


async def test_a_ledger_is_gone_on_with_where_it_ended(tmp_path):
    async with create_ledger(tmp_path) as ledger:
        await fill(ledger)
        before = ledger.path.read_bytes()
    with ledger.path.open("ab") as file:
        file.write(b'{"type":"user","mess')
    async with reopen_ledger(ledger.directory) as (again, history):
        assert (history.torn, again.size, again.context, again.window) == (20, len(before), [0, 3], 1)
        await again.append(user("third"))
        await again.open_window("compaction", [0])
        assert await again.read(0, again.size) == again.path.read_bytes()
        check_invariants(read(again.path), again)
    assert again.path.read_bytes().startswith(before)


async def test_a_ledger_that_was_never_begun_begins_when_it_is_gone_on_with(tmp_path):
    (tmp_path / "messages.jsonl").write_bytes(b'{"torn')
    async with reopen_ledger(tmp_path) as (ledger, history):
        assert (history.events, history.torn) == ([], 6)
        await ledger.append(user("first"))
    assert [window.message_indices for window in read_history(tmp_path).windows] == [[0]]


def test_a_message_needs_a_window(tmp_path):
    (tmp_path / "messages.jsonl").write_bytes(b'{"type":"user","message":{},"message_index":0,"window":-1}\n')
    with pytest.raises(LedgerDamaged, match=r"line 1 of .* window -1 is not open"):
        read_history(tmp_path)


async def test_a_session_in_use_is_not_taken_over_and_everybody_can_tell(tmp_path):
    async with create_ledger(tmp_path) as ledger:
        assert is_in_use(ledger.directory)
        with pytest.raises(UserError, match=f"session {ledger.session} is in use by another process"):
            async with reopen_ledger(ledger.directory):
                pass
    assert not is_in_use(ledger.directory)


async def test_a_session_is_free_as_soon_as_its_writer_is_dead(tmp_path):
    program = """
import sys, trio
from pathlib import Path
from rlm_harness.ledger.writer import create_ledger
async def main():
    async with create_ledger(Path(sys.argv[1])) as ledger:
        print(ledger.directory, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as writer:
        directory = Path(writer.stdout.readline().strip())
        assert await trio.to_thread.run_sync(is_in_use, directory)
        writer.kill()
        writer.wait()
    async with reopen_ledger(directory) as (ledger, history):
        assert len(history.events) == 1
        await ledger.append(user("on"))


async def test_a_session_that_is_looked_at_can_be_taken_over(tmp_path):
    async with create_ledger(tmp_path) as ledger:
        pass

    async def look():
        for _ in range(200):
            await trio.to_thread.run_sync(is_in_use, ledger.directory)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        for _ in range(20):
            async with reopen_ledger(ledger.directory):
                pass


async def test_a_name_that_is_taken_is_not_written_to(tmp_path):
    async with create_ledger(tmp_path, "here") as ledger:
        with pytest.raises(UserError, match="File exists"):
            async with create_ledger(tmp_path, "here"):
                pass
        assert len(read(ledger.path)) == 1
