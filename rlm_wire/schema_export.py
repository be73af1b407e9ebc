"""The JSON Schema of the protocol: every frame, and params, result and items of every method. Spec §4 and §6.1.

Generated from the Structs themselves, so that it cannot drift; `docs/spec/schema.json` is what `export` returns.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, Final, Never, get_args

import msgspec

import rlm_wire.methods
from rlm_wire.frames.limits import PROTOCOL_VERSION
from rlm_wire.frames.schema import Frame, HandshakeFrame
from rlm_wire.methods.base import Request, request_types

_REFERENCE: Final = "#/$defs/{name}"


def export() -> dict[str, Any]:
    """The schema as JSON-like data: `frames` and `handshake` by tag, `methods` by name, `$defs` for what they share.

    A frame is an array; `null` stands for a direction without items. Values inside frames (params, result, item) are
    any value there: what they are is said by the method.
    """
    methods = {request.method: request for request in _requests()}
    types: list[Any] = [*get_args(HandshakeFrame), *get_args(Frame)]
    for request in methods.values():
        types += [request, *_result_and_items(request)]
    schemas, definitions = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schema_of = dict(zip(map(_key, types), schemas, strict=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rlm-wire",
        "version": PROTOCOL_VERSION,
        "handshake": {frame.__name__: schema_of[_key(frame)] for frame in get_args(HandshakeFrame)},
        "frames": {frame.__name__: schema_of[_key(frame)] for frame in get_args(Frame)},
        "methods": {name: _method(request, schema_of) for name, request in sorted(methods.items())},
        "$defs": dict(sorted(definitions.items())),
    }


def _method(request: type[Request[Any]], schema_of: dict[str, Any]) -> dict[str, Any]:
    result, from_handler, from_caller = _result_and_items(request)
    return {
        "params": schema_of[_key(request)],
        "result": schema_of[_key(result)],
        "items_from_handler": None if from_handler is None else schema_of[_key(from_handler)],
        "items_from_caller": None if from_caller is None else schema_of[_key(from_caller)],
    }


def _result_and_items(request: type[Request[Any]]) -> tuple[Any, Any, Any]:
    types = request_types(request)
    from_handler, from_caller = (None if t is Never else t for t in (types.from_handler, types.from_caller))
    return types.result, from_handler, from_caller


def _key(type_: Any) -> str:
    return repr(type_)


def _requests() -> Iterator[type[Request[Any]]]:
    """Every request class of the vocabulary."""
    for module in pkgutil.iter_modules(rlm_wire.methods.__path__, "rlm_wire.methods."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Request) and value.method:
                yield value
