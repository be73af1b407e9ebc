"""Services: long-lived processes that an agent declares, with a readiness check; `rlm.service` in cells.

A service belongs to its agent and is named by it. It survives cells, the kernel, timeouts and cancelled turns. When its
agent or the session ends it is stopped, unless it was declared with `keep`: then it runs on, and nobody restarts it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rlm_wire.methods.base import Request
from rlm_wire.methods.jobs import OutputRange

ServiceStatus = Literal["starting", "ready", "restarting", "stopped", "failed"]
Restart = Literal["never", "on_failure", "always"]


class Ready(msgspec.Struct, frozen=True):
    """When a service counts as ready; exactly one is given.

    `port`: something accepts TCP connections on 127.0.0.1. `http`: a plain-HTTP URL answers with a status below 400.
    `log`: a line of its output contains this text.
    """

    port: int | None = None
    http: str | None = None
    log: str | None = None


class ServiceInfo(msgspec.Struct, frozen=True):
    """A service at one moment. `failed`: it ended, and its restart policy does not start it again.

    `pid` leads its process group. `exit_code` and `signal` are those of its last end; `log_bytes` counts what all its
    runs wrote.
    """

    name: str
    owner_id: str
    command: str
    cwd: str
    status: ServiceStatus
    created_at: float
    pid: int | None = None
    restarts: int = 0
    exit_code: int | None = None
    signal: int | None = None
    restart: Restart = "never"
    keep: bool = False
    log_bytes: int = 0
    error: str | None = None


class StartService(Request[ServiceInfo], tag="services.start"):
    """Start a service and answer once it is ready (at once, if `ready` is None).

    `command`, `cwd` and `env` as for `jobs.run`; stdin is empty. `restart`: started again after it ended ("always"), or
    ended with anything but exit code 0 ("on_failure"), after 0.5 s, doubling up to 30 s while it does not stay up for a
    minute. At most 16 services run in a session, unless the harness grants otherwise. A name is free again once its
    service has stopped or failed.

    Fails with `failed_precondition` (the name is in use, the port is taken, or it ended before it was ready),
    `deadline_exceeded` (not ready within `ready_timeout`, 0 to 300 seconds), `invalid_argument`, `not_found`,
    `resource_exhausted`; the message has the end of its log. A service that did not become ready is stopped.
    Cancelling: it is stopped, too.
    """

    agent: str
    name: str
    command: str | list[str]
    cwd: str | None = None
    env: dict[str, str] | None = None
    ready: Ready | None = None
    ready_timeout: float = 60.0
    restart: Restart = "never"
    keep: bool = False


class GetService(Request[ServiceInfo], tag="services.get"):
    """What is known of a service. Fails with `not_found`."""

    agent: str
    name: str


class ListServices(Request[list[ServiceInfo]], tag="services.list"):
    """All services of the agent, oldest first, also those that have ended."""

    agent: str


class ReadService(Request[OutputRange], tag="services.read"):
    """Its log from byte `cursor` on; as `jobs.read`. Of a long log the beginning and the newest part are kept."""

    agent: str
    name: str
    cursor: int = 0
    max_bytes: int = 16_384
    wait: float = 0.0


class StopService(Request[ServiceInfo], tag="services.stop"):
    """Stop a service and all that descends from it: SIGTERM, `grace` seconds (0 to 60), SIGKILL. Its port is free then.

    One that has ended stays as it is. Fails with `not_found`. Cancelling: it is stopped all the same.
    """

    agent: str
    name: str
    grace: float = 5.0
