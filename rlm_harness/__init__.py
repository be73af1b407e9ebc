"""The harness: the model's turns, its credentials and the ledger, outside of the workspace where the tools run.

`Workspace` is all that a harness of your own needs; the rest is the turn loop behind `rlm-harness`. Importing this
package loads neither Trio nor an HTTP client: names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlm_harness.agent import Agent, Outcome
    from rlm_harness.callbacks import calling_agent
    from rlm_harness.compaction import CompactionPolicy
    from rlm_harness.decisions import ToolPolicy
    from rlm_harness.events import AgentChanged, AgentSpawned
    from rlm_harness.ledger.history import History, LedgerDamaged, read_history
    from rlm_harness.ledger.writer import Ledger, LedgerError, create_ledger
    from rlm_harness.loss import WorkspaceLost
    from rlm_harness.mcp_servers.configuration import read_mcp_file
    from rlm_harness.model.chat import open_chat_model
    from rlm_harness.model.interface import Model, ModelError
    from rlm_harness.model.scripted import ScriptedModel
    from rlm_harness.replication import LedgerSource
    from rlm_harness.skills.opening import open_skills
    from rlm_harness.skills.table import SkillTable
    from rlm_harness.supervisor.calls import AgentCalls
    from rlm_harness.supervisor.policy import Policy
    from rlm_harness.supervisor.supervisor import Supervisor, open_supervisor
    from rlm_harness.workspace import AgentTools, Workspace, local_worker_url

__all__ = [
    "Agent",
    "AgentCalls",
    "AgentChanged",
    "AgentSpawned",
    "AgentTools",
    "CompactionPolicy",
    "History",
    "Ledger",
    "LedgerDamaged",
    "LedgerError",
    "LedgerSource",
    "Model",
    "ModelError",
    "Outcome",
    "Policy",
    "ScriptedModel",
    "SkillTable",
    "Supervisor",
    "ToolPolicy",
    "Workspace",
    "WorkspaceLost",
    "calling_agent",
    "create_ledger",
    "local_worker_url",
    "open_chat_model",
    "open_skills",
    "open_supervisor",
    "read_history",
    "read_mcp_file",
]

_HOMES = {
    "Agent": "agent",
    "AgentCalls": "supervisor.calls",
    "AgentChanged": "events",
    "AgentSpawned": "events",
    "AgentTools": "workspace",
    "CompactionPolicy": "compaction",
    "History": "ledger.history",
    "Ledger": "ledger.writer",
    "LedgerDamaged": "ledger.history",
    "LedgerError": "ledger.writer",
    "LedgerSource": "replication",
    "Model": "model.interface",
    "ModelError": "model.interface",
    "Outcome": "agent",
    "Policy": "supervisor.policy",
    "ScriptedModel": "model.scripted",
    "SkillTable": "skills.table",
    "Supervisor": "supervisor.supervisor",
    "ToolPolicy": "decisions",
    "Workspace": "workspace",
    "WorkspaceLost": "loss",
    "calling_agent": "callbacks",
    "create_ledger": "ledger.writer",
    "local_worker_url": "workspace",
    "open_chat_model": "model.chat",
    "open_skills": "skills.opening",
    "open_supervisor": "supervisor.supervisor",
    "read_history": "ledger.history",
    "read_mcp_file": "mcp_servers.configuration",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
