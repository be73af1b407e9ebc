"""`rlm.service`: declared services, as cells see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlm_wire.methods.jobs import OutputRange
from rlm_wire.methods.services import (
    GetService,
    ListServices,
    ReadService,
    Ready,
    Restart,
    ServiceInfo,
    StartService,
    StopService,
)
from rlm_worker.kernel.inside.api.calls import Calls, operation
from rlm_worker.kernel.inside.api.shell import READ_LIMIT


class Services:
    """Long-lived processes with a name, a readiness check and a restart policy; `keep`: they outlive the session."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @operation
    async def start(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        http: str | None = None,
        log: str | None = None,
        ready_timeout: float = 60,
        restart: Restart = "never",
        keep: bool = False,
    ) -> ServiceInfo:
        """Start a service and return once it is ready: `port` accepts, `http` answers, or `log` is in a line it prints.

        Without any of these it is ready at once. One that ends before, or is not ready within `ready_timeout` seconds,
        is stopped, and the error has the end of its log. `restart` is "never", "on_failure" or "always".
        """
        ready = Ready(port, http, log)
        request = StartService(
            agent="",
            name=name,
            command=command if isinstance(command, str) else list(command),
            cwd=None if cwd is None else str(cwd),
            env=None if env is None else dict(env),
            ready=None if ready == Ready() else ready,
            ready_timeout=ready_timeout,
            restart=restart,
            keep=keep,
        )
        return await self._calls.request(request)

    @operation
    async def get(self, name: str) -> ServiceInfo:
        """What is known of a service."""
        return await self._calls.request(GetService("", name))

    @operation
    async def list(self) -> list[ServiceInfo]:
        """All services of this agent, also ended ones."""
        return await self._calls.request(ListServices(""))

    @operation
    async def read(self, name: str, *, cursor: int = 0, max_bytes: int = 16_384, wait: float = 0) -> OutputRange:
        """Its log from byte `cursor` on, as `read` of a job."""
        return await self._calls.request(ReadService("", name, cursor, min(max_bytes, READ_LIMIT), wait))

    @operation
    async def stop(self, name: str, *, grace: float = 5.0) -> ServiceInfo:
        """Stop it and all that descends from it; its port is free then."""
        return await self._calls.request(StopService("", name, grace))
