"""README.md and docs/harness.md do what they say: their programs run as they stand, and no event is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pages import ROOT, Block, blocks, prints

from rlm_harness.events import Event

HARNESS = ROOT / "docs" / "harness.md"
PROGRAMS = [*blocks(ROOT / "README.md").values(), *blocks(HARNESS).values()]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_prints_what_the_page_shows(program: Block, tmp_path: Path) -> None:
    (tmp_path / program.name).write_text(program.text)
    assert prints(tmp_path, program.name) == program.prints


def test_each_event_is_described_with_its_fields_in_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\|", HARNESS.read_text(encoding="utf-8"), re.MULTILINE)
    described = [(name, re.findall(r"`(\w+)`", fields)) for name, fields in rows]
    fields = {event: [name for name in event.__struct_fields__ if name != "agent"] for event in get_args(Event)}
    assert described == [(event.__struct_config__.tag, names) for event, names in fields.items()]
