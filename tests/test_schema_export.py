"""docs/spec/schema.json is what the Structs say, and says something about every frame and method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlm_wire.schema_export import export

SCHEMA = Path(__file__).parents[1] / "docs/spec/schema.json"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return export()


def test_the_committed_schema_is_the_generated_one(schema: dict[str, Any]) -> None:
    assert json.loads(SCHEMA.read_text()) == schema, "run: rlm-wire schema > docs/spec/schema.json"


def test_it_is_plain_json(schema: dict[str, Any]) -> None:
    assert json.loads(json.dumps(schema)) == schema


def test_every_reference_leads_to_a_definition(schema: dict[str, Any]) -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if "$ref" in value else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    assert references(schema) <= {f"#/$defs/{name}" for name in schema["$defs"]}


def test_tags_below_16_are_the_unnumbered_frames(schema: dict[str, Any]) -> None:
    """[R-7.1.1]"""
    tags = {
        name: schema["$defs"][name]["prefixItems"][0]["enum"][0] for name in {**schema["handshake"], **schema["frames"]}
    }
    assert len(set(tags.values())) == len(tags)
    unnumbered = {"Hello", "Challenge", "Proof", "Welcome", "Goodbye", "Ping", "Pong", "Ack"}
    assert {name for name, tag in tags.items() if tag < 16} == unnumbered


def test_a_method_says_params_result_and_items_both_ways(schema: dict[str, Any]) -> None:
    bash = schema["methods"]["tools.bash"]
    assert bash["params"] == {"$ref": "#/$defs/Bash"}
    assert bash["result"] == {"$ref": "#/$defs/BashResult"}
    assert bash["items_from_handler"] == {"$ref": "#/$defs/OutputChunk"}
    assert bash["items_from_caller"] is None
    assert schema["$defs"]["Bash"]["required"] == ["agent", "command"]
