"""docs/operations.md and docs/security.md say what is so: numbers, messages, commands and tests are looked up."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from pages import ROOT

import rlm_harness.cli
import rlm_wire.__main__
import rlm_worker.cli
from rlm_wire.errors import CODES, Fate

OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
PACKAGES = ("rlm_wire", "rlm_worker", "rlm_harness")
SOURCES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "testing" not in path.parts]

SESSIONS = "rlm_wire.methods.sessions"
UNITS = {"": 1, "s": 1, "ms": 1, "KiB": 1 << 10, "MiB": 1 << 20}
BOUND = re.compile(r"^((?!MAX_|_)[A-Z_]*(?:LIMIT|TIMEOUT|GRACE|PATIENCE|LEASE|_WAIT))\b.*=", re.MULTILINE)
NOT_FOR_OPERATORS = {
    "DESCRIPTOR_LIMIT",  # packets between worker and reaper, and what they hold
    "DESCRIPTORS_LIMIT",
    "PACKET_LIMIT",
    "CHILDREN_LIMIT",
    "rlm_worker.processes.wire.COMMAND_LIMIT",
    "STATUS_PATIENCE",  # within FORK_PATIENCE, END_WAIT and the like: nobody waits for them alone
    "LOST_PATIENCE",
    "ARGUMENT_LIMIT",  # Linux's
    "VECTOR_LIMIT",
    "rlm_worker.kernel.inside.commands.GRACE",
    "rlm_worker.kernel.inside.record.NAME_LIMIT",
    "NAMES_LIMIT",  # of the list of a kernel's variables
    "TEXT_LIMIT",
    "END_GRACE",  # of the model's stream, after its last event
    "rlm_worker.kernel.inside.api.shell.READ_LIMIT",  # these say what the other side says, too
    "rlm_worker.kernel.callbacks.NAME_LIMIT",
}


def rows(section: str) -> list[list[str]]:
    """The cells of all tables below that heading, without the tables' heads."""
    level = section.partition(" ")[0]
    body = re.split(rf"^#{{1,{len(level)}}} ", OPERATIONS.partition(f"{section}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    rules = {number for number, line in enumerate(lines) if line.startswith("| ---")}
    kept = [line for number, line in enumerate(lines) if not {number, number + 1} & rules]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in kept]


def limits() -> Iterator[tuple[str, str]]:
    for default, name, *_ in rows("## Limits and times"):
        if name.startswith("`"):
            yield default, name.strip("`")


def value_of(name: str) -> float:
    """Of a constant of a module, or of a field's default, by its dotted name."""
    parent, _, last = name.rpartition(".")
    try:
        return float(getattr(importlib.import_module(parent), last))
    except ModuleNotFoundError:
        module, _, struct = parent.rpartition(".")
        fields = msgspec.structs.fields(getattr(importlib.import_module(module), struct))
        (default,) = (field.default for field in fields if field.name == last)
        return float(default)


def test_a_default_is_what_the_code_says() -> None:
    wrong = []
    for default, name in limits():
        number, _, unit = default.replace(",", "").partition(" ")
        if float(number) * UNITS[unit] != value_of(name):
            wrong.append(f"{name} is {value_of(name):g}, not {default}")
    assert wrong == []


def test_no_limit_and_no_time_is_left_out() -> None:
    told = {name for _, name in limits()}
    bounds = []
    for path in SOURCES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        names = BOUND.findall(path.read_text(encoding="utf-8"))
        bounds += [f"{module}.{name}" for name in names if not {name, f"{module}.{name}"} & NOT_FOR_OPERATORS]
    assert sorted(set(bounds) - told) == []


def test_what_changes_a_limit_exists() -> None:
    homes = {"Limits": "rlm_wire.frames.limits", "Patience": "rlm_wire.broker.patience", "Quotas": SESSIONS}
    for _, name, _, changed in rows("## Limits and times"):
        for struct, field in re.findall(r"`(\w+)\((\w+)=\)`", changed):
            assert value_of(f"{homes[struct]}.{struct}.{field}") == value_of(name.strip("`")), changed
        for program, command, flag in re.findall(r"`(rlm-\w+) (\w+) (--\w+)`", changed):
            assert parser(program).parse_args([command, "--stdio", flag, "5"]), changed


def test_every_code_and_every_fate_is_explained() -> None:
    assert {code.strip("`") for code, *_ in rows("### Codes")} == CODES
    assert set(get_args(Fate)) <= {fate.strip("`") for fate, *_ in rows("### When the connection breaks")}


def texts() -> Iterator[str]:
    """Every text in the code, with … for what is filled in."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_a_message_is_one_that_the_code_gives() -> None:
    given = "\n".join(texts())
    sections = ("### At connecting", "### When the connection breaks", "### Of the machine")
    said = [phrase for section in sections for row in rows(section) for phrase in re.findall(r"`([^`]+)`", row[0])]
    assert len(said) > 30
    assert [phrase for phrase in said if phrase.rstrip(" …") not in given] == []


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command line of ours in the document's shell blocks, also those behind ssh and docker."""
    for block in re.findall(r"^```sh\n(.*?)^```$", OPERATIONS, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            yield from _ours(words)


def _ours(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    for at, word in enumerate(words):
        if word in ("rlm-worker", "rlm-wire", "rlm-harness"):
            until = next((end for end in range(at, len(words)) if words[end][0] in "<>&" or words[end] == "2>&1"), None)
            yield word, words[at + 1 : until]
            return
    for word in words:
        if " rlm-" in f" {word}":
            yield from _ours(shlex.split(word))


def parser(program: str) -> ArgumentParser:
    return {"rlm-worker": rlm_worker.cli, "rlm-wire": rlm_wire.__main__, "rlm-harness": rlm_harness.cli}[
        program
    ]._parser()


@pytest.mark.parametrize(("program", "arguments"), list(commands()), ids=str)
def test_a_command_is_one_that_the_program_takes(program: str, arguments: list[str]) -> None:
    options = parser(program).parse_args(arguments)
    for url in filter(None, (getattr(options, "workspace", None), getattr(options, "url", None))):
        for inner, words in _ours(shlex.split(url)[1:]):
            parser(inner).parse_args(words)


def test_a_test_that_is_named_exists() -> None:
    there = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"\btest_\w+(?!\w*\.py)", SECURITY)
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in there] == []
    paths = [Path(path) for page in (OPERATIONS, SECURITY) for path in re.findall(r"`(tests/[\w/]+\.py)`", page)]
    assert [str(path) for path in paths if not (ROOT / path).exists()] == []
