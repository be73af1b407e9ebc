"""The skills that this harness runs for its agents' cells, by name: what they are called, and what answers them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

import rlm_wire
from rlm_harness.secrets import UserError
from rlm_harness.skills.names import LOCAL, check_name
from rlm_wire.errors import CallError
from rlm_wire.methods.skills import CallSkill, LocalSkill, RemoteSkill, Skills

Run: TypeAlias = Callable[[dict[str, Any]], Awaitable[str]]
"""Takes the arguments by name and gives text. Raises CallError."""

SKILLS_LIMIT: Final = 128
"""Functions: more than a model chooses from, and all of them are told to every kernel."""

DESCRIPTORS_LIMIT: Final = 1 << 20
"""Bytes of all names, helps and parameters: each kernel gets and keeps them."""


class SkillTable:
    """Filled before the first agent is opened: `add`, then `register` with the service of `Workspace.connect`.

    `local` are those of the worker's own that agents have besides.
    """

    def __init__(self, local: Sequence[LocalSkill] = LOCAL) -> None:
        self._local = list(local)
        self._skills: dict[str, RemoteSkill] = {}
        self._runs: dict[str, Run] = {}
        self._origins: dict[str, str] = {name: f"the skill {name}" for name in LOCAL}
        self._bytes = 0

    def add(self, skill: RemoteSkill, run: Run, origin: str) -> None:
        """Have `skill`, answered by `run`. `origin` says in messages what it is.

        Raises UserError if its name is taken or cannot be one, or if there are too many.
        """
        check_name(skill.name, origin)
        if skill.name in self._origins:
            raise UserError(f"{origin} and {self._origins[skill.name]} would both be called {skill.name!r} in cells")
        self._bytes += len(msgspec.msgpack.encode(skill))
        if len(self._skills) >= SKILLS_LIMIT:
            raise UserError(f"there are more than {SKILLS_LIMIT} tools for cells: {origin} is one too many")
        if self._bytes > DESCRIPTORS_LIMIT:
            raise UserError(f"the descriptions of all tools have more than {DESCRIPTORS_LIMIT >> 20} MiB with {origin}")
        self._skills[skill.name], self._runs[skill.name], self._origins[skill.name] = skill, run, origin

    def skills(self) -> Skills:
        """What an agent is opened with."""
        return Skills(self._local, list(self._skills.values()))

    def register(self, service: rlm_wire.Service) -> None:
        """Have `service` answer cells that call a skill."""
        service.handle(CallSkill)(self._call)

    async def _call(self, request: CallSkill) -> str:
        run = self._runs.get(request.skill)
        if run is None:
            raise CallError("not_found", f"there is no skill {request.skill[:200]!r}")
        return await run(request.arguments)
