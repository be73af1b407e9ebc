"""`python -m fuzz.engine TARGET [libFuzzer arguments]`: one target under atheris, in a process of its own.

The library is imported inside `instrument_imports`, or the fuzzer would be blind to it; nothing else is instrumented.
"""

from __future__ import annotations

import resource
import sys

import atheris  # type: ignore[import-untyped]

from fuzz.targets import target

_MOST_ADDRESS_SPACE = 3 << 30
"""Bytes. An allocation that follows a length in the input raises MemoryError, instead of being never touched."""


def main() -> None:
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["rlm_wire"]):
        run = target(name).run
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESS_SPACE, _MOST_ADDRESS_SPACE))
    atheris.Setup(sys.argv, run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
