"""What a tree of agents has used of what it may use. Pure."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rlm_harness.events import Usage
from rlm_harness.supervisor.policy import Policy

Exhausted: TypeAlias = Literal["max_turns", "max_tokens"]


class Budgets:
    """Turns, tokens and starts of all agents together. Calls under way may overdraw it; none begins beyond it."""

    def __init__(self, policy: Policy) -> None:
        self.turns = 0
        self.tokens = 0
        self.subagents = 0
        self._policy = policy

    @property
    def exhausted(self) -> Exhausted | None:
        """Which of them is used up, so that no model call may begin."""
        if self._policy.max_turns is not None and self.turns >= self._policy.max_turns:
            return "max_turns"
        return "max_tokens" if self.tokens_used_up else None

    @property
    def tokens_used_up(self) -> bool:
        return self._policy.max_tokens is not None and self.tokens >= self._policy.max_tokens

    def used_up_by(self, usage: Usage) -> bool:
        """Whether an agent with this `usage` has generated as many tokens as one may."""
        most = self._policy.max_agent_tokens
        return most is not None and usage.completion_tokens >= most

    @property
    def subagents_left(self) -> bool:
        return self._policy.max_subagents is None or self.subagents < self._policy.max_subagents

    def spend(self, usage: Usage) -> None:
        """Note what a model call took; what was in the endpoint's cache is free."""
        self.tokens += usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
