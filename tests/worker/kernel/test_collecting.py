"""`rlm.agent.collect` with more agents than one call may name."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from rlm_wire.methods.agents import COLLECT_LIMIT, AgentHandle, AgentResult, CollectAgents, TokenUsage
from rlm_worker.kernel.inside.api.agent import Agent, Results
from rlm_worker.kernel.inside.api.calls import Calls


class Harness:
    """Answers as a harness does whose agents end in order of their ids."""

    async def request(self, request: CollectAgents) -> AgentResult:
        asked = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=CollectAgents)
        return AgentResult(min(asked.agents), None, "completed", "", TokenUsage(), 1, "", running=False)


async def test_more_agents_than_one_call_takes_are_all_collected() -> None:
    calls: Any = Harness()
    ids = [f"sub-{number:08x}" for number in range(COLLECT_LIMIT + 2)]
    agents = [Agent(cast(Calls, calls), AgentHandle(name, "")) for name in reversed(ids)]
    assert sorted([result.id async for result in Results(calls, agents)]) == ids
