"""Skills: functions of the cells' own, each a module that can be called. `await edit(...)` is `await edit.run(...)`.

Local ones are tools of the worker; paths and commands start from where the kernel is. Remote ones are made from what
the harness tells of them, and called there.
"""

from __future__ import annotations

import inspect
import keyword
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rlm_wire.methods.skills import CallSkill, Parameter, RemoteSkill, Skills
from rlm_wire.methods.tools import Bash, Edit, Fetch
from rlm_worker.kernel.inside.api.calls import Calls, Error, operation

OUTPUT_LIMIT: Final = 30_000
"""Characters of a command's output that `bash` gives: its first and last half."""

FETCH_TIMEOUT: Final = 45.0


class Skill(ModuleType):
    """A module whose call is that of its function `run`."""

    run: Callable[..., Any]

    def __init__(self, name: str, run: Callable[..., Any]) -> None:
        super().__init__(name, inspect.getdoc(run))
        self.run = run
        self.__signature__ = inspect.signature(run)
        self.__all__ = ["run"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def skill_modules(skills: Skills, calls: Calls) -> list[ModuleType]:
    """The modules of `skills`, to be found by `import` unless something else of that name was imported already."""
    modules: list[ModuleType] = [Skill(name, operation(_LOCAL[name](calls))) for name in skills.local]
    modules += [Skill(skill.name, operation(_remote(skill, calls))) for skill in skills.remote]
    for module in modules:
        sys.modules.setdefault(module.__name__, module)
    return modules


def _edit(calls: Calls) -> Callable[..., Any]:
    async def edit(path: str, old_str: str, new_str: str) -> str:
        """Replace the one occurrence of `old_str` in the UTF-8 file `path` by `new_str`, byte-exact outside of it.

        Raises ValueError if it occurs not exactly once, FileNotFoundError if there is no such file.
        """
        try:
            done = await calls.request(Edit("", _from_here(path), old_str, new_str))
        except Error as error:
            if error.code == "not_found":
                raise FileNotFoundError(error.args[0]) from None
            if error.code in ("failed_precondition", "invalid_argument"):
                raise ValueError(error.args[0]) from None
            raise
        return "\n".join([f"Edited {done.path}: 1 replacement, at line {done.line}", *done.notices])

    return edit


def _bash(calls: Calls) -> Callable[..., Any]:
    async def bash(command: str, timeout: float = 120) -> str:
        """Run `command` in a fresh bash and give its output, then a line with the exit code if that is not 0.

        stdin is empty. After `timeout` seconds it is stopped. Of more than 30,000 characters the middle is left out.
        """
        done = await calls.request(Bash("", command, timeout, _from_here("") or None))
        lines = []
        if done.timed_out:
            lines.append(f"Error: command timed out after {timeout:g}s")
        elif done.exit_code is None:
            lines.append(f"[killed by signal {done.signal}]")
        elif done.exit_code:
            lines.append(f"[exit code {done.exit_code}]")
        lines += [f"[{notice}]" for notice in done.notices]
        output = _clipped(done.output.text)
        if not output and not lines:
            return "(no output)"
        return output + ("" if output.endswith("\n") or not output else "\n") * bool(lines) + "\n".join(lines)

    return bash


def _from_here(path: str | Path) -> str:
    """`path` from the directory that the kernel is in; as it is, if that was removed."""
    try:
        return str(Path.cwd() / path)
    except FileNotFoundError:
        return str(path)


def _clipped(text: str) -> str:
    if len(text) <= OUTPUT_LIMIT:
        return text
    half = OUTPUT_LIMIT // 2
    return f"{text[:half]}\n[... {len(text) - OUTPUT_LIMIT} characters omitted ...]\n{text[-half:]}"


def _fetch(calls: Calls) -> Callable[..., Any]:
    async def fetch(url: str, *, max_chars: int = 20_000) -> str:
        """GET `url` (https:// assumed) and give its text, HTML as readable text. Errors are told as text, too."""
        try:
            page = await calls.request(Fetch("", url, max_chars, FETCH_TIMEOUT))
        except Error as error:
            if error.code in ("permission_denied", "cancelled"):
                raise
            return f"Error: {error.args[0]}"
        status = f" (HTTP {page.status})" if page.status >= 300 else ""
        cut = f"\n... [truncated at {len(page.text)} of {page.chars} chars]" if page.truncated else ""
        return f"URL: {page.url}{status}\n\n{page.text}{cut}"

    return fetch


_LOCAL: Final[dict[str, Callable[[Calls], Callable[..., Any]]]] = {"bash": _bash, "edit": _edit, "fetch": _fetch}


class _Text:
    """An annotation that is shown as it is written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _remote(skill: RemoteSkill, calls: Calls) -> Callable[..., Any]:
    """The function of a remote skill: arguments by position or by name, as its parameters say."""
    signature = _signature(skill)
    optional = {parameter.name for parameter in skill.parameters if not (parameter.required or parameter.nullable)}

    async def run(*args: Any, **kwargs: Any) -> str:
        arguments = signature.bind(*args, **kwargs).arguments
        arguments |= arguments.pop(_OTHERS, {})
        given = {name: value for name, value in arguments.items() if not (value is None and name in optional)}
        return await calls.request(CallSkill(skill.name, given))

    run.__name__ = skill.name
    run.__doc__ = _help(skill)
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


_OTHERS: Final = "_others"


def _signature(skill: RemoteSkill) -> inspect.Signature:
    """Required parameters first. Those whose names Python cannot take are given as `**{"the-name": value}`."""
    parameters, others = [], skill.open
    for parameter in sorted(skill.parameters, key=lambda parameter: not parameter.required):
        if not parameter.name.isidentifier() or keyword.iskeyword(parameter.name):
            others = True
            continue
        parameters.append(
            inspect.Parameter(
                parameter.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if parameter.required else parameter.default,
                annotation=_Text(parameter.type) if parameter.type else inspect.Parameter.empty,
            )
        )
    if others:
        parameters.append(inspect.Parameter(_OTHERS, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters, return_annotation=str)


def _help(skill: RemoteSkill) -> str:
    lines = [skill.description or f"The tool {skill.name}.", *["", "Arguments:"] * bool(skill.parameters)]
    lines += [_line(parameter) for parameter in skill.parameters]
    return "\n".join(lines)


def _line(parameter: Parameter) -> str:
    notes = ", ".join(note for note in (parameter.type, "" if parameter.required else "optional") if note)
    about = f": {parameter.description}" if parameter.description else ""
    return f"    {parameter.name}{f' ({notes})' if notes else ''}{about}"
