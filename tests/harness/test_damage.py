"""Ledgers with one senseless value: whoever reads them says that they are damaged, or reads them all the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlm_harness.ledger.history import Gap
from rlm_harness.ledger.sessions import as_json, list_sessions, load_agents
from rlm_harness.recovery import recover
from rlm_harness.transcript import render_list, render_session

CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "true"}'}}
TURN = {"turn": 1, "finish_reason": "stop", "duration": 0.1, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
RECORDS: list[dict[str, Any]] = [
    {"type": "context_window", "window": 0, "reason": "start", "message_indices": []},
    {"type": "user", "turn": 0, "message": {"role": "user", "content": [{"type": "text", "text": "go"}]}},
    {"type": "sub_spawn", "child": "sub-1", "child_dir": "sub-1", "prompt": "look", "name": "scout"},
    {"type": "assistant", **TURN, "message": {"role": "assistant", "content": "", "tool_calls": [CALL]}},
    {"type": "tool_result", "turn": 1, "tool": "bash", "duration": 0.1, "message": {"role": "tool", "content": "out"}},
    {"type": "prompt_rollback", "prompt_id": "p", "start_turn": 0, "attempted_turns": 1, "reason": "error"},
    {"type": "done", "stop": "answered", "answer": "", "usage": {}, "turns": 1},
]
for number, record in enumerate(RECORDS):
    record |= {"id": f"r{number}", "timestamp": 1e9}
for number, record in enumerate(one for one in RECORDS if "message" in one):
    record |= {"message_index": number, "window": 0}
RECORDS[4]["message"]["tool_call_id"] = "c"

GONE = object()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value inside of `value`."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def with_value(record: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(record)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


def readable(parent: Path, records: list[dict[str, Any]]) -> bool:
    """Whether the session with these records is read by all its readers, none of which may raise."""
    (parent / "s" / "messages.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    root = load_agents(parent / "s")
    assert render_list(list_sessions(parent))
    assert "".join(render_session(root, full=False))
    assert msgspec.json.encode(as_json(root))
    assert (root.history is None) == bool(root.problem)
    if root.history is not None:
        recover(root.history)
    return root.history is not None


@pytest.mark.parametrize("number", range(len(RECORDS)), ids=[record["type"] for record in RECORDS])
def test_a_senseless_value_anywhere_ends_no_reader(tmp_path: Path, number: int) -> None:
    (tmp_path / "s").mkdir()
    assert readable(tmp_path, RECORDS)
    for path in places(RECORDS[number]):
        for value in (GONE, None, "x", -1, [], {}, [1], 1e308):
            changed = with_value(RECORDS[number], path, value)
            readable(tmp_path, [*RECORDS[:number], changed, *RECORDS[number + 1 :]])


DAMAGES = {
    "torn": b'{"type":"assist',
    "glued": b'{"type":"assist{"type":"done"}',
    "empty": b"",
    "no JSON": b"hello",
    "zeros": b"\0" * 4096,
    "no UTF-8": b'{"type":"\xff"}',
    "a list": b"[]",
    "no type": b"{}",
    "a type that is none": b'{"type":7}',
    "a field of another type": b'{"type":"sub_spawn","child":[],"child_dir":"","prompt":""}',
}
LINES = [json.dumps(record).encode() for record in RECORDS]


def write(parent: Path, lines: list[bytes]) -> Path:
    (parent / "s").mkdir(exist_ok=True)
    (parent / "s" / "messages.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return parent / "s"


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_line_anywhere_is_left_out_and_all_others_are_shown(tmp_path: Path, damage: bytes) -> None:
    for number in range(len(LINES)):
        directory = write(tmp_path, [*LINES[:number], damage, *LINES[number + 1 :]])
        root = load_agents(directory)
        assert root.history is None
        assert root.remains is not None
        assert root.events == RECORDS[:number] + RECORDS[number + 1 :]
        assert [(gap.first, gap.last, gap.place) for gap in root.remains.gaps] == [(number + 1, number + 1, number)]
        text = "".join(render_session(root, full=False))
        (said,) = [line for line in text.splitlines() if line.startswith("! ")]
        assert said.startswith(f"! line {number + 1} of {directory / 'messages.jsonl'} is damaged: ")
        assert said.endswith("; it is left out here")
        assert "root: " in text
        assert " · damaged · " in text
        assert [one.session for one in list_sessions(tmp_path)] == ["s"]
        assert [one.status for one in list_sessions(tmp_path)] == ["damaged"]


def test_damaged_lines_behind_each_other_are_one_gap(tmp_path: Path) -> None:
    root = load_agents(write(tmp_path, [*LINES[:2], b"{", b"", *LINES[4:6], b"[", *LINES[6:]]))
    assert root.remains is not None
    assert [(gap.first, gap.last, gap.place) for gap in root.remains.gaps] == [(3, 4, 2), (7, 7, 4)]
    text = "".join(render_session(root, full=True))
    assert f"! lines 3 to 4 of {root.directory / 'messages.jsonl'} are damaged: " in text
    places = [text.index(part) for part in ("user\n  go", "! lines 3 to 4 of ", "rolled back", "! line 7 of ")]
    assert places == sorted(places)


def test_what_a_damaged_line_says_reaches_no_terminal(tmp_path: Path) -> None:
    line = json.dumps({**RECORDS[3], "turn": "\x1b[2J"}).encode()
    text = "".join(render_session(load_agents(write(tmp_path, [*LINES[:3], line, *LINES[4:]])), full=True))
    assert "\x1b" not in text
    bare = line.replace(b"\\u001b", b"\x1b")
    text = "".join(render_session(load_agents(write(tmp_path, [*LINES[:3], bare, *LINES[4:]])), full=True))
    assert "\x1b" not in text


def test_a_ledger_whose_lines_are_whole_but_not_all_there_is_shown_and_is_damaged(tmp_path: Path) -> None:
    root = load_agents(write(tmp_path, LINES[:3] + LINES[4:]))
    assert root.history is None
    assert root.events == RECORDS[:3] + RECORDS[4:]
    text = "".join(render_session(root, full=False))
    assert f"! line 4 of {root.directory / 'messages.jsonl'} is damaged: message 2 follows 1 others" in text
    assert "bash in " in text


def test_the_first_line_of_a_ledger_may_be_the_damaged_one(tmp_path: Path) -> None:
    write(tmp_path, [b"\0", *LINES[1:]])
    (listed,) = list_sessions(tmp_path)
    assert (listed.started, listed.status, listed.turns, listed.task) == (1e9, "damaged", 1, "go")


def test_gaps_are_in_the_json_form_too(tmp_path: Path) -> None:
    directory = write(tmp_path, [*LINES[:3], b"{", *LINES[4:]])
    (agent,) = as_json(load_agents(directory))["agents"]
    (gap,) = agent["gaps"]
    assert isinstance(gap, Gap)
    assert agent["records"] == RECORDS[:3] + RECORDS[4:]
    assert agent["problem"].startswith(f"line 4 of {directory / 'messages.jsonl'} is damaged: ")
