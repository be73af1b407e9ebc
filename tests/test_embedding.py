"""docs/embedding.md does what it says: its blocks are files, run as they stand, and print what it shows."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT, blocks, prints, start

PAGE = ROOT / "docs" / "embedding.md"
BLOCKS = blocks(PAGE)
SECRET = {"CALCULATOR_TOKEN": "not in the page"}
HARNESSES = ["harness.py", "agents_asyncio.py", "background.py"]
CLIENTS = [name for name, block in BLOCKS.items() if name.startswith("client")]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The page's files, and beside them what installing them would have made of the entry point."""
    for block in BLOCKS.values():
        (tmp_path / block.name).write_text(block.text)
    installed = tmp_path / "abstract_sockets-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: abstract-sockets\nVersion: 1.0\n")
    groups = tomllib.loads(BLOCKS["pyproject.toml"].text)["project"]["entry-points"]
    lines = [
        line for group, names in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def url(program: Path) -> Iterator[str]:
    with start(program, "server.py", **SECRET) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_prints_what_the_page_shows(name: str, program: Path, url: str) -> None:
    assert prints(program, name, url, **SECRET) == BLOCKS[name].prints
    if name == "client_trace.py":
        records = [json.loads(line) for line in (program / "frames.jsonl").read_text().splitlines()]
        documented = set(re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE))
        fields = {field for row in documented for field in re.findall(r"`(\w+)`", row)}
        assert {field for record in records for field in record} <= fields


def test_the_transport_keeps_its_promises_and_is_found_by_its_scheme(program: Path) -> None:
    assert prints(program, "check_abstract_sockets.py") == BLOCKS["check_abstract_sockets.py"].prints


@pytest.mark.parametrize("name", HARNESSES)
def test_a_harness_prints_what_the_page_shows(name: str, program: Path) -> None:
    assert prints(program, name) == BLOCKS[name].prints


def test_every_file_of_the_page_is_used() -> None:
    used = {
        *CLIENTS,
        "calculator.py",
        "server.py",
        "abstract_sockets.py",
        "pyproject.toml",
        "check_abstract_sockets.py",
        *HARNESSES,
    }
    assert set(BLOCKS) == used
