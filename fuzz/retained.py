"""How much memory an object holds, from outside: whatever it is made of, and however that changes."""

from __future__ import annotations

import gc
import sys
import types

_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def retained(root: object, *, shared: tuple[object, ...] = ()) -> int:
    """Bytes of everything reachable from `root`, without classes, code and `shared`."""
    seen = {id(each) for each in shared}
    waiting = [root]
    total = 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _SHARED):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        waiting += gc.get_referents(each)
    return total
