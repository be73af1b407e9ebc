"""Agents that start agents: who they are, what they may use, how they hear of each other, and how they end.

`supervisor` puts it together. `policy`, `budgets`, `inbox`, `instructions` and `tree` know nothing of Trio or the wire.
"""
