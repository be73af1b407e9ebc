"""`python -m bench.subjects.flood URL`: an agent that keeps thousands of calls in flight, until it is ended."""

from __future__ import annotations

import sys

import trio

from rlm_harness.workspace import AgentTools, Workspace

IN_FLIGHT = 4096


async def flood(url: str) -> None:
    async with Workspace.connect(url) as workspace, workspace.agent() as agent, trio.open_nursery() as nursery:
        print("flooding", flush=True)
        for _ in range(IN_FLIGHT):
            nursery.start_soon(_call, agent)


async def _call(agent: AgentTools) -> None:
    while True:
        await agent.inspect()


if __name__ == "__main__":
    trio.run(flood, sys.argv[1])
