"""What a harness keeps in a worker: its workspace and its agents."""

from __future__ import annotations

import msgspec

from rlm_wire.methods.base import Request
from rlm_wire.methods.skills import Skills


class WorkspaceInfo(msgspec.Struct, frozen=True):
    """`cwd` is absolute; `worker` names program and version; `pid` is the worker's.

    `workspace` is the workspace's id for `AdoptWorkspace`, empty if nobody can adopt it.
    """

    cwd: str
    worker: str
    pid: int
    platform: str
    python: str
    workspace: str = ""


class Quotas(msgspec.Struct, frozen=True):
    """What the harness grants to a session's agents together.

    `job_bytes`: kept output of one job or service on disk, at least 128 KiB. `total_bytes`: of all of them; when it is
    used up, ended jobs lose theirs, the oldest first, and say so. `watches`: active ones; `registered_watches`: all
    that are ever set.
    """

    active_jobs: int = 32
    job_bytes: int = 16 * 1024 * 1024
    total_bytes: int = 512 * 1024 * 1024
    active_services: int = 16
    watches: int = 64
    registered_watches: int = 1024


class OpenWorkspace(Request[WorkspaceInfo], tag="workspace.open"):
    """First call of a session: the directory and environment of its agents.

    `cwd` (None: the worker's own) must exist; `env` is laid over the worker's allow-listed environment; `quotas` (None:
    the defaults) bound what its agents may run in the background. With a `secret`, of 16 to 200 characters that nobody
    can guess, the workspace can be adopted.
    """

    cwd: str | None = None
    env: dict[str, str] | None = None
    quotas: Quotas | None = None
    secret: str | None = None


class KeptAgent(msgspec.Struct, frozen=True):
    """An agent that is open, and whether it has had a kernel."""

    agent: str
    has_kernel: bool


class AdoptedWorkspace(msgspec.Struct, frozen=True):
    """`last_event` is the number of the latest event there was."""

    info: WorkspaceInfo
    agents: list[KeptAgent]
    last_event: int


class AdoptWorkspace(Request[AdoptedWorkspace], tag="workspace.adopt"):
    """First call of a session, instead of `OpenWorkspace`: go on with a workspace that another session has opened.

    For a harness that has lost its memory, but not its files. `secret` is the one it was opened with. The other session
    is ended, if it has not been lost already; calls that run for it are cancelled first. Agents, kernels, jobs,
    services, watches and replicas stay. Fails with `not_found` if there is no such workspace (any more), or the secret
    is another; with `failed_precondition` once there are agents.
    """

    workspace: str
    secret: str


class AgentOpened(msgspec.Struct, frozen=True):
    agent: str


class OpenAgent(Request[AgentOpened], tag="agent.open"):
    """Open one agent: one kernel (started when first used) and one scope root.

    `agent` names it (None: the worker does). `skills` are those of its cells. Without `allow_git` its commands are
    refused that would look beyond the history of what is checked out: a courtesy to the model, not a boundary.
    """

    agent: str | None = None
    skills: Skills | None = None
    allow_git: bool = True


class AgentClosed(msgspec.Struct, frozen=True):
    """`stopped` counts processes that were ended; `notices` names what was left running."""

    stopped: int = 0
    notices: list[str] = []


class CloseAgent(Request[AgentClosed], tag="agent.close"):
    """Close an agent: its kernel and running commands end before the answer. Daemons it left run on."""

    agent: str
