"""Limits that hold for each agent, and for each of its tool calls."""

from harness.actors import Actors, Opened, says, tool

from rlm_harness.decisions import ToolPolicy
from rlm_harness.events import Usage


async def test_an_agent_ends_when_it_has_generated_what_it_may(opened: Opened) -> None:
    model = Actors(root=[tool("bash", Usage(10, 30), command="true"), says("never asked for")])
    async with opened(model, max_agent_tokens=30) as (_, agent):
        assert (await agent.prompt("root")).stop == "token_budget"


async def test_how_long_tools_may_take_and_how_much_of_their_results_is_seen_can_be_said(opened: Opened) -> None:
    model = Actors(root=[tool("bash", command="printf '%2000d' 7"), tool("bash", command="sleep 60"), says("ok")])
    async with opened(model, ToolPolicy(timeout=1, max_result=1000)) as (_, agent):
        await agent.prompt("root")
    assert "[... 1000 bytes omitted ...]" in model.seen("root", 1)
    assert "1 s" in model.seen("root", 2)
