"""Ledgers with one senseless value: whoever reads them says that they are damaged, or reads them all the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

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
