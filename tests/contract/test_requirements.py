"""Every rule of docs/spec/protocol.md has a test that names it, and every name in a test is a rule."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlm_wire.errors import CODES
from rlm_wire.frames import limits as number
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.schema import Frame, HandshakeFrame
from rlm_wire.schema_export import export

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "docs/spec/protocol.md").read_text()
RULE = re.compile(r"^\* \[R-(\d+\.\d+\.\d+)\] ((?:.+\n)(?:  .+\n)*)", re.MULTILINE)
NAME = re.compile(r"\bR-(\d+\.\d+\.\d+)\b")
RULES = {match[1]: match[2] for match in RULE.finditer(TEXT)}


def named_in_tests() -> dict[str, str]:
    """Rule → a file that names it: in docstrings of tests, or as a requirement of a vector."""
    found = {}
    for path in TESTS.rglob("test_*.py"):
        found.update(dict.fromkeys(NAME.findall(path.read_text()), path.name))
    for path in TESTS.glob("vectors/v1/*/*.json"):
        for rule in json.loads(path.read_text())["requirements"]:
            found[rule.removeprefix("R-")] = path.name
    return found


def test_every_rule_is_named_by_a_test() -> None:
    assert sorted(RULES.keys() - named_in_tests().keys()) == []


def test_every_name_in_a_test_is_a_rule() -> None:
    assert {rule: where for rule, where in named_in_tests().items() if rule not in RULES} == {}


def test_every_rule_mentioned_in_the_text_exists() -> None:
    assert set(NAME.findall(TEXT)) <= RULES.keys()
    assert len(RULES) == TEXT.count("* [R-")


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_one_must_and_stands_in_its_section(rule: str) -> None:
    assert len(re.findall(r"\bMUST\b", RULES[rule])) == 1
    section = rule.rpartition(".")[0]
    begin = TEXT.index(f"\n### {section} ")
    assert begin < TEXT.index(f"[R-{rule}] ") < TEXT.index("\n## ", begin)
    assert "\n### " not in TEXT[begin + 1 : TEXT.index(f"* [R-{rule}] ")]


def test_the_tables_name_every_frame_with_its_tag_and_fields() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (\d+) \|", TEXT, re.MULTILINE))
    frames = {*Frame.__args__, *HandshakeFrame.__args__}  # type: ignore[attr-defined]
    assert rows == {frame.__name__: str(frame.__struct_config__.tag) for frame in frames}
    for frame in frames:
        row = re.search(rf"^\| {frame.__name__} \|.*$", TEXT, re.MULTILINE)
        assert row is not None
        positions = [
            re.search(rf"\b{field}\b", row[0].partition(str(frame.__struct_config__.tag))[2])
            for field in frame.__struct_fields__
        ]
        assert all(positions), frame
        starts = [position.start() for position in positions if position]
        assert starts == sorted(starts), frame


def test_the_table_of_limits_is_that_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", TEXT, re.MULTILINE))
    defaults = number.Limits()
    assert rows == {name: f"{getattr(defaults, name):,}" for name in number.Limits.__struct_fields__}


def test_the_codes_are_those_of_the_code() -> None:
    section = TEXT[TEXT.index("### 9.1") : TEXT.index("In a Fail, `retryable`")]
    assert set(re.findall(r"`(\w+)`", section)) == CODES


def test_the_methods_of_a_session_with_a_worker_exist() -> None:
    section = TEXT[TEXT.index("## 12. A session with a worker") :]
    named = set(re.findall(r'[`"]((?:workspace|agent|tools|kernel)\.\w+)[`"]', section))
    assert len(named) == 9
    assert named <= set(export()["methods"])


def hexadecimal(block: str) -> list[bytes]:
    """The bytes of each line of an example, its comment cut off."""
    lines = [re.split(r"\s{3,}", line.strip())[0] for line in block.strip("\n").splitlines()]
    return [bytes.fromhex(line) for line in lines]


def blocks(section: str) -> list[str]:
    text = TEXT[TEXT.index(f"### {section} ") :]
    return re.findall(r"^```\n(.*?)^```$", text[: re.search(r"\n##+ ", text[1:]).end()], re.MULTILINE | re.DOTALL)  # type: ignore[union-attr]


def test_the_handshake_in_the_text_is_a_vector() -> None:
    vector = json.loads((TESTS / "vectors/v1/accept/handshake-token-plain-server.json").read_text())
    hello, challenge, proof, welcome = (b"".join(hexadecimal(block)) for block in blocks("10.1"))
    assert (hello + proof).hex() == "".join(vector["receive"])
    assert (challenge + welcome).hex() == vector["sends"]


def test_the_frames_in_the_text_are_frames() -> None:
    found = []
    for block in blocks("10.2"):
        for data in hexadecimal(block):
            assert int.from_bytes(data[:4], "big") == len(data) - 4
            found.append(type(codec_named("msgpack").decode_frame_untrusted(data[4:])).__name__)
    assert found == ["Call", "Reply", "Call", "Fail", "Goodbye"]
