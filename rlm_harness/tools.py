"""The tools that the model sees: their schemas, its arguments checked, the call made, the result rendered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Never, TypeAlias, TypeVar

import msgspec
import trio

import rlm_wire
from rlm_harness.model.interface import ToolCall, ToolSchema
from rlm_harness.rendering import (
    Rendered,
    render_bash,
    render_cell,
    render_edit,
    render_failure,
    render_fetch,
)
from rlm_harness.workspace import AgentTools, OnOutput, follow
from rlm_wire.errors import CallError
from rlm_wire.methods.tools import OutputChunk

Result = TypeVar("Result")

EXEC_TIMEOUT = 300
"""Seconds a command or cell gets unless the model asks for another time."""

MAX_EXEC_TIMEOUT = 600
"""Seconds the model may ask for: longer work belongs in the background."""

MAX_WAIT = 300
"""Seconds of one wait: longer ones are several."""

SETTLE_TIMEOUT = 10.0
"""Seconds a cancelled call gets to stop and give its partial result: an interrupt, 2 s, a kill, and some to spare."""


class Ipython(msgspec.Struct):
    code: str
    timeout: Any = None


class Bash(msgspec.Struct):
    command: str


class Edit(msgspec.Struct):
    path: str
    old_str: str
    new_str: str


class Fetch(msgspec.Struct):
    url: str
    max_chars: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 20_000


class Wait(msgspec.Struct):
    timeout: Annotated[float, msgspec.Meta(ge=0)] = MAX_WAIT


Arguments: TypeAlias = Ipython | Bash | Edit | Fetch | Wait

_TYPES: dict[str, type[Arguments]] = {"ipython": Ipython, "bash": Bash, "edit": Edit, "fetch": Fetch, "wait": Wait}

TOOLS: Final = ("ipython", "bash", "edit", "fetch")
"""Those that work in the workspace. `wait` comes with `ipython`, whose cells start what one can wait for."""


class ArgumentError(Exception):
    """The model's arguments cannot be used; the text goes back to it."""


def _schema(name: str, description: str, required: list[str], **properties: tuple[str, str]) -> ToolSchema:
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind, "description": text} for key, (kind, text) in properties.items()},
        "required": required,
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOL_SCHEMAS: list[ToolSchema] = [
    _schema(
        "ipython",
        "Run Python in a persistent IPython kernel. Shows what the cell prints, and its last expression.",
        ["code"],
        code=("string", "The cell; top-level await, !command and %%bash work."),
        timeout=("integer", f"Seconds until it is interrupted; default {EXEC_TIMEOUT}, at most {MAX_EXEC_TIMEOUT}."),
    ),
    _schema(
        "bash",
        f"Run a command in a fresh bash in the workspace directory. stdin is empty; stopped after {EXEC_TIMEOUT} s.",
        ["command"],
        command=("string", "What bash runs; several lines are fine."),
    ),
    _schema(
        "edit",
        "Replace text in a file. The text must occur exactly once; everything around it stays byte for byte.",
        ["path", "old_str", "new_str"],
        path=("string", "Absolute, or relative to the workspace directory."),
        old_str=("string", "The text to replace, with its exact white space."),
        new_str=("string", "What takes its place."),
    ),
    _schema(
        "fetch",
        "Get a URL as text: HTML as readable text, other text as it is.",
        ["url"],
        url=("string", "https:// is assumed if it names no scheme."),
        max_chars=("integer", "The most characters to give; default 20000."),
    ),
]

_WAIT_SCHEMA = _schema(
    "wait",
    "Wait for an event: a child agent that answers, a job that ends, a watched change, a message.",
    [],
    timeout=("number", f"Seconds, at most {MAX_WAIT}, which is the default."),
)


def schemas_of(tools: Sequence[str]) -> list[ToolSchema]:
    """The schemas of these tools, in the order in which models always see them."""
    return [schema for schema in (*TOOL_SCHEMAS, _WAIT_SCHEMA) if schema["function"]["name"] in tools]


def parse_arguments(call: ToolCall, tools: Sequence[str] = TOOLS) -> Arguments:
    """The arguments of `call`, checked. Raises ArgumentError with a text that tells the model what to mend."""
    if call.name not in tools:
        there_are = f"the tools are {', '.join(tools)}" if tools else "there are no tools"
        raise ArgumentError(f"unknown tool '{call.name}'; {there_are}")
    try:
        arguments = msgspec.json.decode(call.arguments, type=_TYPES[call.name])
    except msgspec.ValidationError as error:
        raise ArgumentError(f"the arguments of {call.name} do not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ArgumentError(
            f"the arguments of {call.name} are not JSON: {_json_fault(call.arguments, error)}"
        ) from None
    if isinstance(arguments, Bash) and not arguments.command.strip():
        raise ArgumentError("empty command")
    return arguments


def _json_fault(text: str, error: Exception) -> str:
    """What is wrong, with the line and column that only the standard library's parser tells."""
    try:
        json.loads(text)
    except json.JSONDecodeError as fault:
        return f"{fault.msg} at line {fault.lineno}, column {fault.colno}"
    except RecursionError:
        return "nested too deeply"
    return str(error)


def parsed_or_error(call: ToolCall, tools: Sequence[str] = TOOLS) -> dict[str, Any]:
    """How the ledger notes a call: its name, and its arguments parsed, or why they could not be."""
    try:
        return {"name": call.name, "arguments": msgspec.to_builtins(parse_arguments(call, tools))}
    except ArgumentError as error:
        return {"name": call.name, "error": str(error)}


async def run_tool(
    tools: AgentTools, arguments: Ipython | Bash | Edit | Fetch, on_output: OnOutput, timeout: int = EXEC_TIMEOUT
) -> Rendered:
    """Do what the model asked and render what came of it. Raises SessionLost if the worker is gone.

    `timeout` is the seconds that a command or cell gets, unless the model asks for another time.

    Cancellation: a command or cell is stopped and its partial result *returned*, so that it can be recorded; the
    cancellation goes on at the caller's next checkpoint. An edit or fetch is stopped without a result.
    """
    try:
        match arguments:
            case Ipython(code, asked):
                seconds = _cell_timeout(asked, timeout)
                async with tools.open_ipython(code, timeout=seconds) as cell:
                    return render_cell(await _settled(cell, on_output), seconds)
            case Bash(command):
                async with tools.open_bash(command, timeout=timeout) as running:
                    return render_bash(await _settled(running, on_output), timeout)
            case Edit(path, old_str, new_str):
                return render_edit(await tools.edit(path, old_str, new_str))
            case Fetch(url, max_chars):
                return render_fetch(await tools.fetch(url, max_chars=max_chars))
    except CallError as error:
        return render_failure(error)


def _cell_timeout(asked: Any, default: int) -> int:
    """Models write all sorts of things here; what is no positive integer means the default."""
    if isinstance(asked, bool) or not isinstance(asked, int) or asked <= 0:
        return default
    return min(asked, max(default, MAX_EXEC_TIMEOUT))


async def _settled(call: rlm_wire.Call[Result, OutputChunk, Never], on_output: OnOutput) -> Result:
    try:
        return await follow(call, on_output)
    except trio.Cancelled:
        call.cancel(reason="the turn was cancelled")
        with trio.move_on_after(SETTLE_TIMEOUT, shield=True):
            return await call.result()
        raise
