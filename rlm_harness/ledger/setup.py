"""setup.json: what a later process needs to go on with a session. For the owner only, as it opens the workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rlm_harness.ledger.files import read, replace

SETUP: Final = "setup.json"


class Setup(msgspec.Struct, frozen=True):
    """What the session was started with.

    `url` is the worker's (None: one of our own), `cwd` the directory in the workspace. `workspace` and `secret` are for
    its adoption, and empty if it cannot be adopted. `skills` are the built-in ones: MCP servers are not remembered.
    """

    model: str
    base_url: str = ""
    url: str | None = None
    cwd: str | None = None
    workspace: str = ""
    secret: str = ""
    max_depth: int | None = None
    max_agents: int | None = None
    max_turns: int | None = None
    max_tokens: int | None = None
    concurrency: int = 4
    allow_git: bool = True
    tools: tuple[str, ...] | None = None
    skills: tuple[str, ...] | None = None
    parallel_tools: bool = False
    pictures: bool = False
    summarize_at: int | None = None

    def __repr__(self) -> str:
        return f"<setup of a session with {self.model!r}>"


def write_setup(directory: Path, setup: Setup) -> None:
    """Blocking. Raises OSError."""
    replace(directory / SETUP, msgspec.json.encode(setup) + b"\n")


def read_setup(directory: Path) -> Setup | None:
    """None if there is none that makes sense. Blocking. Raises OSError."""
    try:
        return msgspec.json.decode(read(directory / SETUP), type=Setup)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
