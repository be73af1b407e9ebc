"""Skills: functions that cells have without an import. Local ones run in the worker, remote ones in the harness.

A remote skill is told to the kernel as its name, its help and its parameters, so that the function can be made there;
calling it is `skills.call`, which goes to the harness. What it needs to do its work, keys for instance, stays there.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rlm_wire.methods.base import Request

LocalSkill = Literal["bash", "edit", "fetch"]


class Parameter(msgspec.Struct, frozen=True):
    """`name` need be no Python identifier. `type` is for people (`list[str]`). `default` is only shown.

    `nullable`: None is a value like any other; else None for an optional parameter is as if it were not given.
    """

    name: str
    type: str = ""
    required: bool = True
    default: Any = None
    description: str = ""
    nullable: bool = False


class RemoteSkill(msgspec.Struct, frozen=True):
    """`name` is an identifier. `open`: it takes other named arguments than its parameters as well."""

    name: str
    description: str = ""
    parameters: list[Parameter] = []
    open: bool = False


class Skills(msgspec.Struct, frozen=True):
    """What the cells of one agent have."""

    local: list[LocalSkill] = []
    remote: list[RemoteSkill] = []


class CallSkill(Request[str], tag="skills.call"):
    """Cell → harness: the text that the remote skill gives.

    Fails with `not_found` (no such skill), `invalid_argument`, `internal` (the skill itself failed: `message` is what
    it said), `unavailable` (it could not be reached), `deadline_exceeded`.
    """

    skill: str
    arguments: dict[str, Any]
