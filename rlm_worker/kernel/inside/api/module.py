"""The `rlm` module itself: what is in it, and where it is put so that every cell finds it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from rlm_worker.kernel.inside.api.agent import Agents
from rlm_worker.kernel.inside.api.calls import Calls, Error, Refused, operation, wait
from rlm_worker.kernel.inside.api.history import history_of
from rlm_worker.kernel.inside.api.inbox import Inbox
from rlm_worker.kernel.inside.api.service import Services
from rlm_worker.kernel.inside.api.shell import Shell
from rlm_worker.kernel.inside.api.watch import Watches
from rlm_worker.kernel.inside.record import class_name

NAME: Final = "rlm"

DOCUMENTATION: Final = """What a cell can ask of the worker and of the harness.

Each operation works in async and in plain code: `await rlm.call("m")` where an event loop runs (a cell that awaits, a
coroutine, Trio), `rlm.call("m")` anywhere else (a plain cell, a function, a thread), where it blocks. `rlm.wait(...)`
blocks everywhere. An operation belongs to the cell that started it, also from a thread or a background task: when that
cell has ended, it is refused. A failed one raises `rlm.Error`, with `code` and `data`.
"""


def install(calls: Calls) -> ModuleType:
    """Make the module and have `import rlm` find it."""
    module = ModuleType(NAME)
    Error.__module__ = Refused.__module__ = NAME

    @operation
    async def call(method: str, /, **params: Any) -> Any:
        """Call any method of the harness's, or of the worker's, with these params. Returns plain values."""
        if not isinstance(method, str):  # on the wire it would break the connection, and with it the kernel
            raise Error("invalid_argument", f"the method of a call is a string, not {class_name(method)}")
        return await calls.send(method, params)

    parts: dict[str, Any] = {
        "Error": Error,
        "agent": Agents(calls),
        "call": call,
        "history": history_of(calls),
        "inbox": Inbox(calls),
        "service": Services(calls),
        "shell": Shell(calls),
        "wait": wait,
        "watch": Watches(calls),
    }
    vars(module).update(parts, __all__=sorted(parts), __doc__=f"{DOCUMENTATION}\n{_overview(parts)}")
    sys.modules[NAME] = module
    return module


def _overview(parts: dict[str, Any]) -> str:
    """A line for each operation: how it is called, and the first sentence about it."""
    lines = []
    for name, part in sorted(parts.items()):
        if inspect.isclass(part):
            continue
        if inspect.isfunction(part):
            lines.append(_line(f"{NAME}.{name}", part))
        for operation_name, function in inspect.getmembers(type(part), inspect.isfunction):
            if not operation_name.startswith("_") and not inspect.isfunction(part):
                lines.append(_line(f"{NAME}.{name}.{operation_name}", function))
    return "\n".join(lines)


def _line(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    shown = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"{name}{shown}: {(inspect.getdoc(function) or '').partition(chr(10))[0]}"
