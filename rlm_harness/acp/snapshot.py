"""How a session stands, as clients get it with every answer: `ai.prime.rlm/session-v1`. Pure.

Here, too, is how a prompt's end is called in the protocol.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from acp.schema import StopReason

from rlm_harness.acp.contract import Contract
from rlm_harness.events import Compacted, Event, ToolStarted, Usage

KEY: Final = "ai.prime.rlm/session-v1"

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
        self.counts = Counts()
        self.stop: str | None = None
        """How the last prompt ended: as the turn loop calls it, or `cancelled` or `error`."""
        self._contract = contract
        self._compactions = 0
        self._cells: list[str] = []
        self._cell_chars = 0
        self._cell_lines = 0
        self._cell_count = 0

    def take(self, event: Event) -> None:
        match event:
            case Compacted(agent=""):
                self._compactions += 1
            case ToolStarted(tool="ipython", arguments=arguments, agent=""):
                code = str(arguments.get("code", ""))
                self._cell_count += 1
                self._cell_chars += len(code)
                self._cell_lines += code.count("\n") + 1
            case _:
                pass

    def snapshot(self) -> dict[str, Any]:
        """What is null is left out."""
        counts, limits = self.counts, self._contract.policy
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
            "metrics": self._metrics(),
            "supervisor": {"subagent_calls": counts.subagents, "active_subagent_calls": counts.active_subagents},
            "limits": _without_nulls(
                {
                    "max_depth": limits.max_depth,
                    "max_concurrent_subagents": limits.max_concurrent_subagents,
                    "max_subagent_calls": limits.max_subagent_calls,
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

    def _metrics(self) -> dict[str, int | float]:
        metrics: dict[str, int | float] = {"num_compactions": self._compactions}
        if self._cell_count:
            metrics["ipython_input_chars_mean"] = self._cell_chars / self._cell_count
            metrics["ipython_input_loc_mean"] = self._cell_lines / self._cell_count
        if self._contract.policy.max_depth:
            metrics["sub_rlm_num_calls"] = self.counts.subagents
        return metrics


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
