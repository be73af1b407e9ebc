"""What runs in a workspace, and the receipt of its closing."""

from __future__ import annotations

from typing import Literal

import msgspec

from rlm_wire.methods.base import Request

Kind = Literal["kernel", "cell child", "command", "background job", "daemon", "job", "service"]
Lifetime = Literal["call", "kernel", "agent", "survives"]


class ProcessInfo(msgspec.Struct, frozen=True):
    """A process. `pid` and `start_time` (clock ticks since boot) identify it; `started_at` is Unix time.

    `pid` is as the processes of the workspace see it, which with the tier `pid-namespace` is not as others see it.
    `command` is its arguments joined by spaces, at most 200 bytes. `agent` is whose it is, None if that cannot be told.
    `background job` and `daemon` are what an ended command, or a cell, has left running. `lifetime` says with what it
    ends at the latest.
    """

    pid: int
    start_time: int
    started_at: float
    command: str
    kind: Kind
    lifetime: Lifetime
    agent: str | None = None


class ProcessList(msgspec.Struct, frozen=True):
    """`tier` is how processes are contained: `cgroup`, `pid-namespace`, `subreaper` or `process-group`."""

    tier: str
    processes: list[ProcessInfo]


class ListProcesses(Request[ProcessList], tag="workspace.processes"):
    """What of this session runs at this moment, at most 4,096 processes."""


class Receipt(msgspec.Struct, frozen=True):
    """What closing a workspace has come to.

    `confirmed`: nothing that had to stop is alive; looked up afterwards. If not, `remaining` is what is alive although
    it had to stop, `error` says what is wrong, and `retryable` whether closing again may yet confirm it: missing
    evidence is retryable, a final negative is not. Survivors do not prevent a confirmation: `declared` are services
    that were declared to run on, `unknown` are background jobs and daemons, which nobody declared.
    """

    confirmed: bool
    tier: str = ""
    stopped: list[ProcessInfo] = []
    declared: list[ProcessInfo] = []
    unknown: list[ProcessInfo] = []
    remaining: list[ProcessInfo] = []
    error: str | None = None
    retryable: bool = False


class CloseWorkspace(Request[Receipt], tag="workspace.close"):
    """End all agents and what of theirs has to stop. Again: the same receipt, unless that one was retryable."""
