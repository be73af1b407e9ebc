"""What a target must reach, and the measuring of it: lines, functions and marks, by plain tracing of a corpus.

`python -m fuzz.reach TARGET DIRECTORY...` runs every input of the directories through the target, without a fuzzer, and
fails if the target no longer exercises its modules. Only lines inside functions count: importing runs the others.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


class Reach:
    """`lines`: module → least per cent of its lines; `functions`: qualified names to enter; `marks`: what to have seen.

    A target sets its marks as it runs: outcomes that matter, whatever lines lead to them.
    """

    def __init__(self, *, lines: dict[str, int], functions: tuple[str, ...], marks: Iterable[str]) -> None:
        self.lines = lines
        self.functions = functions
        self.marks = frozenset(marks)
        self.marked: set[str] = set()

    def mark(self, what: str) -> None:
        self.marked.add(what)

    def mark_if(self, seen: bool, what: str) -> None:
        if seen:
            self.marked.add(what)


class Tracer:
    """Records the lines and functions that are run in the given modules' files."""

    def __init__(self, modules: Iterable[str]) -> None:
        self.files = {_source_of(module): module for module in modules}
        self.lines: dict[str, set[int]] = {file: set() for file in self.files}
        self.functions: set[str] = set()

    def __call__(self, frame: types.FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        lines = self.lines.get(frame.f_code.co_filename)
        if lines is None:
            return None
        self.functions.add(frame.f_code.co_qualname)

        def local(frame: types.FrameType, event: str, argument: object) -> Callable[..., Any]:
            lines.add(frame.f_lineno)
            return local

        return local


def _source_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


def _function_lines(code: types.CodeType, inside: bool = False) -> Iterator[int]:
    """Lines of every function in `code`; class bodies run once, at import, and do not count."""
    if inside:
        yield from (line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _function_lines(constant, inside or bool(constant.co_flags & 0x2))  # CO_NEWLOCALS: a function


def _shortfalls(reach: Reach, tracer: Tracer) -> Iterator[str]:
    for file, module in tracer.files.items():
        wanted = set(_function_lines(compile(Path(file).read_text(), file, "exec", dont_inherit=True)))
        missed = wanted - tracer.lines[file]
        percent = 100 - 100 * len(missed) // len(wanted)
        print(f"  {module}: {percent} % of lines ({reach.lines[module]} wanted); not: {_ranges(missed) or 'none'}")
        if percent < reach.lines[module]:
            yield f"only {percent} % of {module}, {reach.lines[module]} % are wanted"
    yield from (f"{name} was never entered" for name in reach.functions if name not in tracer.functions)
    yield from (f"{what!r} was never seen" for what in sorted(reach.marks - reach.marked))


def _ranges(lines: set[int]) -> str:
    return ", ".join(map(str, sorted(lines)))


def measure(name: str, inputs: Iterable[bytes]) -> list[str]:
    """Run `inputs` through target `name`; the sentences that say what it failed to reach, none if all is well."""
    from fuzz.targets import target

    module = target(name)
    module.REACH.marked.clear()
    tracer = Tracer(module.REACH.lines)
    sys.settrace(tracer)
    try:
        for data in inputs:
            module.run(data)
    finally:
        sys.settrace(None)
    return list(_shortfalls(module.REACH, tracer))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz.reach", description="Does a target exercise its module?")
    parser.add_argument("target")
    parser.add_argument("directories", nargs="+", type=Path)
    arguments = parser.parse_args()
    files = sorted(file for directory in arguments.directories for file in directory.iterdir())
    shortfalls = measure(arguments.target, (file.read_bytes() for file in files))
    for shortfall in shortfalls:
        print(f"  {shortfall}", file=sys.stderr)
    sys.exit(bool(shortfalls))


if __name__ == "__main__":
    main()
