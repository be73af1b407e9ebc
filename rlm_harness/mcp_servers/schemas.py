"""A tool's JSON schema as the parameters of a Python function. Pure; schemas come from servers, and may be anything."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rlm_wire.methods.skills import Parameter

_TYPES: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}

DEPTH_LIMIT: Final = 5
"""Types inside types: deeper ones are shown as `Any`, for they are only shown."""

SHOWN_LIMIT: Final = 200
"""Characters of a type, bytes of a default: longer ones are of no use in a signature."""


def parameters_untrusted(schema: Any) -> tuple[list[Parameter], bool]:
    """The parameters that the schema of an object names, and whether others are taken as well. Never raises."""
    if not isinstance(schema, dict):
        return [], True
    properties, required, definitions = (schema.get(key) for key in ("properties", "required", "$defs"))
    required = required if isinstance(required, list) else []
    definitions = definitions if isinstance(definitions, dict) else {}
    parameters = [
        _parameter(name, value if isinstance(value, dict) else {}, name in required, definitions)
        for name, value in (properties.items() if isinstance(properties, dict) else ())
    ]
    # Most schemas leave this out and mean that there are no others; a mistyped name should be seen.
    return parameters, schema.get("additionalProperties", False) is not False


def _parameter(name: str, schema: dict[str, Any], required: bool, definitions: dict[str, Any]) -> Parameter:
    kind = _type(schema, definitions, DEPTH_LIMIT)
    description = schema.get("description")
    default = schema.get("default")
    return Parameter(
        name,
        kind if len(kind) <= SHOWN_LIMIT else "Any",
        required,
        default if not required and _is_short(default) else None,
        description if isinstance(description, str) else "",
        nullable="None" in kind.split(" | ") or kind == "Any",
    )


def _type(schema: Any, definitions: dict[str, Any], depth: int) -> str:
    if not isinstance(schema, dict) or depth == 0:
        return "Any"
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _type(definitions.get(reference.removeprefix("#/$defs/")), definitions, depth - 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return _union([_type(choice, definitions, depth - 1) for choice in schema[key][:20]])
    for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if isinstance(values, list) and all(value is None or isinstance(value, (str, int)) for value in values):
            return f"Literal[{', '.join(map(repr, values[:50]))}]"
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([_TYPES.get(str(one), "Any") for one in kind[:20]])
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"list[{_type(schema['items'], definitions, depth - 1)}]"
    return _TYPES.get(str(kind), "Any")


def _union(kinds: list[str]) -> str:
    return "Any" if "Any" in kinds or not kinds else " | ".join(dict.fromkeys(kinds))


def _is_short(default: Any) -> bool:
    try:
        return len(msgspec.msgpack.encode(default)) <= SHOWN_LIMIT
    except (TypeError, ValueError, OverflowError, RecursionError):  # a number that is too large, for instance
        return False
