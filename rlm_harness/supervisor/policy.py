"""What a tree of agents may use. Pure."""

from __future__ import annotations

import msgspec

from rlm_harness.prompts import Guidance
from rlm_wire.methods.skills import Skills


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """None: no limit. All but `max_depth` and `max_agent_tokens` are for the whole tree, the root agent included.

    `max_depth`: how far below the root agent there may be agents; 0 is none. `max_subagents`: how often agents may be
    started. `max_turns`: model calls. `max_tokens`: those generated, and those of prompts that no cache held.
    `max_agent_tokens`: those that each agent by itself may generate.
    `max_model_calls`: at the same time. `max_working`: agents of one depth that are at work at the same time; the
    others wait for their turn. `max_persistent`: persistent agents that are there at the same time, with their kernels.

    `skills` and `allow_git` are what each agent is opened with, see `Workspace.agent`; `guidance` what it is told.
    """

    max_depth: int = 1
    max_subagents: int | None = None
    max_turns: int | None = None
    max_tokens: int | None = 1_000_000
    max_agent_tokens: int | None = None
    max_model_calls: int = 4
    max_working: int = 64
    max_persistent: int = 128
    skills: Skills = Skills()
    allow_git: bool = True
    guidance: Guidance = Guidance()
