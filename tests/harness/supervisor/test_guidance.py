"""What agents are told beside what there is, by where they stand in the tree."""

import pytest
from harness.actors import Actors, Opened, cell, says

from rlm_harness.prompts import DELEGATION, Guidance, Surroundings, system_prompt

ALL = Guidance(append="for the root", append_below="for those below", append_leaves="for leaves")


@pytest.mark.parametrize(
    ("guidance", "root", "may_spawn", "told"),
    [
        (ALL, True, True, "for the root"),
        (ALL, True, False, "for the root"),
        (ALL, False, True, "for those below"),
        (ALL, False, False, "for leaves"),
        (Guidance(append="for the root"), False, False, "for the root"),
        (Guidance(append="for the root", append_below="for those below"), False, False, "for those below"),
    ],
)
def test_who_is_told_what(guidance, root, may_spawn, told):
    surroundings = Surroundings("/w", "linux", "3.11", agents=may_spawn, parent=not root, guidance=guidance)
    prompt = system_prompt(surroundings, ["bash"], several=False)
    assert prompt.endswith(f"no tool call.\n\n{told}")
    assert DELEGATION not in prompt


@pytest.mark.parametrize("may_spawn", [False, True])
def test_a_role_takes_the_place_of_the_first_line_and_delegation_is_for_those_who_can(may_spawn):
    guidance = Guidance(role="You are a gardener.\nBe patient.", delegation=True)
    surroundings = Surroundings("/w", "linux", "3.11", agents=may_spawn, guidance=guidance)
    prompt = system_prompt(surroundings, ["bash"], several=False)
    assert prompt.startswith("You are a gardener.\nBe patient.\n\nWorkspace: /w ")
    assert prompt.endswith(DELEGATION) == may_spawn


async def test_agents_are_told_by_their_depth(opened: Opened) -> None:
    model = Actors(root=[cell("rlm.agent.spawn('child go').result().answer"), says("ok")], child=[says("ok")])
    async with opened(model, guidance=ALL) as (_, agent):
        await agent.prompt("root")
    ends = [str(model.shown[task][0][0]["content"]).rpartition("\n")[2] for task in ("root", "child")]
    assert ends == ["for the root", "for leaves"]
