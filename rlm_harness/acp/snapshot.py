"""How a session stands, as clients get it with every answer: `ai.prime.rlm/session-v1`. Pure.

Here, too, is how a prompt's end is called in the protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from acp.schema import StopReason

from rlm_harness.acp.contract import Contract
from rlm_harness.events import AssistantReplied, Compacted, Event, ToolFinished, ToolStarted, Usage

KEY: Final = "ai.prime.rlm/session-v1"

SKILLS_COUNTED: Final = 256
"""Names of skills that have a count of their own: cells make names up, and each answer has all of them."""

_STOPS: Final[dict[str, tuple[StopReason, str]]] = {
    "answered": ("end_turn", "done"),
    "empty": ("end_turn", "done"),
    "length": ("max_tokens", "max_tokens"),
    "max_turns": ("max_turn_requests", "max_total_turns"),
    "max_tokens": ("max_tokens", "max_total_tokens"),
    "token_budget": ("max_tokens", "token_budget"),
    "compaction_failed": ("end_turn", "compaction_failed"),
    "cancelled": ("cancelled", "cancelled"),
}
"""How a prompt ends here, in the protocol, and in the snapshot."""


def stop_reason(stop: str) -> StopReason:
    """What the protocol calls it."""
    return _STOPS[stop][0]


class Counts(msgspec.Struct):
    """What the supervisor has counted, for all agents together; `usage` and `turns` also those of cancelled prompts."""

    usage: Usage = Usage()
    turns: int = 0
    subagents: int = 0
    active_subagents: int = 0


class Progress:
    """Counted from the events of a session, for its snapshots."""

    def __init__(self, contract: Contract) -> None:
        self.stop: str | None = None
        """How the last prompt ended: as the turn loop calls it, or `cancelled` or `error`."""
        self._contract = contract
        self._compactions = 0
        self._compacted_turns = 0
        self._dropped_chars = 0
        self._summary_chars = 0
        self._turns_since_compaction = 0
        self._skill_calls = 0
        self._skill_calls_below = 0
        self._by_skill: Counter[str] = Counter()
        self._cell_chars = 0
        self._cell_lines = 0
        self._cell_count = 0

    def take(self, event: Event) -> None:
        match event:
            case AssistantReplied(agent=""):
                self._turns_since_compaction += 1
            case Compacted(agent=""):
                self._compactions += 1
                self._compacted_turns += event.turns
                self._dropped_chars += event.dropped_chars
                self._summary_chars += len(event.summary)
                self._turns_since_compaction = 0
            case ToolFinished(skill_calls=skill_calls, agent=agent) if skill_calls:
                self._count(skill_calls, below=agent != "")
            case ToolStarted(tool="ipython", arguments=arguments, agent=""):
                code = str(arguments.get("code", ""))
                self._cell_count += 1
                self._cell_chars += len(code)
                self._cell_lines += code.count("\n") + 1
            case _:
                pass

    def _count(self, skill_calls: Mapping[str, int], *, below: bool) -> None:
        if below:
            self._skill_calls_below += sum(skill_calls.values())
        else:
            self._skill_calls += sum(skill_calls.values())
        for name, count in skill_calls.items():
            if name in self._by_skill or len(self._by_skill) < SKILLS_COUNTED:
                self._by_skill[name] += count

    def snapshot(self, counts: Counts) -> dict[str, Any]:
        """What is null is left out."""
        limits = self._contract.policy
        usage = counts.usage
        told = {
            "session_id": self._contract.session_id,
            "last_stop_reason": _STOPS[self.stop][1] if self.stop in _STOPS else self.stop,
            "model": self._contract.model,
            "turns": counts.turns,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
            "metrics": self._metrics(counts.subagents),
            "programmatic_tool_call_stats": {
                "python_total": self._skill_calls + self._skill_calls_below,
                "bash_total": 0,
                "by_tool_python": dict(self._by_skill),
                "by_tool_bash": {},
            },
            "supervisor": {"subagent_calls": counts.subagents, "active_subagent_calls": counts.active_subagents},
            "limits": _without_nulls(
                {
                    "max_depth": limits.max_depth,
                    "max_concurrent_subagents": limits.max_concurrent_subagents,
                    "max_subagent_calls": limits.max_subagent_calls,
                    "max_total_turns": limits.max_total_turns,
                    "max_total_tokens": limits.max_total_tokens,
                    "max_tokens": limits.max_tokens,
                    "compaction": limits.compaction,
                    "summarize_at_tokens": limits.summarize_at_tokens,
                    "max_compactions": limits.max_compactions,
                    "max_compaction_attempts": limits.max_compaction_attempts,
                    "allow_git": limits.allow_git,
                }
            ),
        }
        return _without_nulls(told)

    def _metrics(self, subagents: int) -> dict[str, int | float]:
        """Numbers only. Those of skills called from commands are 0: there is no way to do that."""
        below = {
            "sub_rlm_num_calls": subagents,
            "has_sub_rlm": int(subagents > 0),
            "sub_rlm_num_ptc_calls_python": self._skill_calls_below,
            "sub_rlm_num_ptc_calls_bash": 0,
        }
        return {
            "num_compactions": self._compactions,
            "has_compacted": int(self._compactions > 0),
            "turns_since_last_compaction": self._turns_since_compaction,
            "turns_between_compactions_mean": _mean(self._compacted_turns, self._compactions),
            "compaction_chars_dropped_mean": _mean(self._dropped_chars, self._compactions),
            "compaction_summary_chars_mean": _mean(self._summary_chars, self._compactions),
            "ipython_input_chars_mean": _mean(self._cell_chars, self._cell_count),
            "ipython_input_loc_mean": _mean(self._cell_lines, self._cell_count),
            "num_ptc_calls_python": self._skill_calls,
            "num_ptc_calls_bash": 0,
            "has_ptc": int(self._skill_calls + self._skill_calls_below > 0),
            **(below if self._contract.policy.max_depth else {}),
        }


def _mean(total: int, count: int) -> float:
    return total / count if count else 0.0


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
