"""What the whole tree may use."""

import pytest

from rlm_harness.events import Usage
from rlm_harness.supervisor.budgets import Budgets
from rlm_harness.supervisor.policy import Policy


def test_without_limits_nothing_is_used_up():
    budgets = Budgets(Policy(max_tokens=None))
    budgets.turns = budgets.subagents = 10**9
    budgets.spend(Usage(10**9, 10**9))
    assert (budgets.exhausted, budgets.subagents_left) == (None, True)


@pytest.mark.parametrize(
    ("turns", "usage", "exhausted"),
    [
        (1, Usage(80, 19), None),
        (2, Usage(), "max_turns"),
        (1, Usage(80, 20), "max_tokens"),
        (1, Usage(1000, 20, 921), None),
        (3, Usage(900), "max_turns"),
    ],
)
def test_a_budget_is_exhausted_when_it_is_reached(turns, usage, exhausted):
    budgets = Budgets(Policy(max_turns=2, max_tokens=100))
    budgets.turns = turns
    budgets.spend(usage)
    assert budgets.exhausted == exhausted


def test_what_one_agent_may_generate_is_counted_for_each():
    budgets = Budgets(Policy(max_agent_tokens=10))
    assert [budgets.used_up_by(Usage(10**6, tokens)) for tokens in (9, 10)] == [False, True]
    assert not Budgets(Policy()).used_up_by(Usage(0, 10**9))


def test_agents_are_counted_when_they_are_started():
    budgets = Budgets(Policy(max_subagents=1))
    assert budgets.subagents_left
    budgets.subagents += 1
    assert not budgets.subagents_left
