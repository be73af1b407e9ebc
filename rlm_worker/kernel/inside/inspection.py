"""What a kernel's namespace holds, told while a cell may be running, without running any code of the user's.

So nothing is asked of a value but what C code of the interpreter or of an extension answers: a class written in Python
may define `__len__`, `__sizeof__`, `__class__` or `__name__`, and its metaclass more.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Mapping
from typing import Any, Final

from rlm_wire.methods.kernels import KernelVariables, Variable

NAMES_LIMIT: Final = 1000
TEXT_LIMIT: Final = 200

_WRITTEN_IN_PYTHON: Final = 1 << 9  # of a type's flags: made at run time, as a class statement does
_MEASURABLE: Final = frozenset(
    {
        str, bytes, bytearray, list, tuple, dict, set, frozenset, range,
        collections.deque, collections.OrderedDict, collections.defaultdict,
    }
)  # fmt: skip

_flags = type.__dict__["__flags__"].__get__
_qualified_name = type.__dict__["__qualname__"].__get__
_module = type.__dict__["__module__"].__get__


def variables(namespace: Mapping[str, Any], hidden: Mapping[str, Any], running: bool) -> KernelVariables:
    """The user's variables in order of their making, at most NAMES_LIMIT of them."""
    found = [
        (name, value)
        for name, value in list(namespace.items())
        if type(name) is str and not name.startswith("_") and not (name in hidden and hidden[name] is value)
    ]
    return KernelVariables([_describe(name, value) for name, value in found[:NAMES_LIMIT]], len(found), running)


def _describe(name: str, value: Any) -> Variable:
    kind = type(value)
    size = object.__sizeof__(value) if _flags(kind) & _WRITTEN_IN_PYTHON else sys.getsizeof(value)
    return Variable(_text(name), _type_name(kind), size, len(value) if kind in _MEASURABLE else None)


def _type_name(kind: type) -> str:
    name, module = _text(_qualified_name(kind)), _module(kind)
    return name if type(module) is not str or module in ("builtins", "__main__") else f"{_text(module)}.{name}"


def _text(text: str) -> str:
    return text[:TEXT_LIMIT].encode("utf-8", "backslashreplace").decode()
