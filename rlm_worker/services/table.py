"""All services of a session: whose they are, how many may run, and what each operation on them does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError
from rlm_wire.methods.jobs import OutputRange
from rlm_wire.methods.names import check_name
from rlm_wire.methods.services import GetService, ListServices, ReadService, ServiceInfo, StartService, StopService
from rlm_wire.methods.sessions import Quotas
from rlm_worker.environment import checked_environment
from rlm_worker.events import Events
from rlm_worker.jobs.arguments import GRACE_LIMIT, read_output, waiting
from rlm_worker.jobs.commands import GRACE, Place, ShellCommand
from rlm_worker.jobs.disk import Disk
from rlm_worker.jobs.output import KeptOutput
from rlm_worker.jobs.table import Jobs
from rlm_worker.roster import Owner
from rlm_worker.services.readiness import check_for, check_free
from rlm_worker.services.service import Service

REMEMBERED = 64
"""Ended services that are remembered, with their logs; older ones are forgotten."""


class Services:
    """The services of one session, each the business of its agent alone. Made by `open_services`."""

    def __init__(
        self, place: Place, disk: Disk, events: Events, jobs: Jobs, quotas: Quotas, nursery: trio.Nursery
    ) -> None:
        self.quotas = quotas
        self._place = place
        self._disk = disk
        self._events = events
        self._jobs = jobs
        self._nursery = nursery
        self._services: dict[tuple[str, str], Service] = {}
        self._last_number = 0

    async def start(self, request: StartService) -> ServiceInfo:
        patience = waiting(request.ready_timeout, "ready_timeout")
        check = None if request.ready is None else check_for(request.ready)
        env = {**self._jobs.variables(request.agent), **checked_environment(request.env or {})}
        owner = Owner(request.agent, "service", survives=request.keep)
        command = ShellCommand(self._place, owner, request.command, request.cwd, env)
        self._check_name(request.agent, request.name)
        if request.ready is not None:
            await check_free(request.ready)
        self._last_number += 1
        output = KeptOutput(self._disk, f"service-{self._last_number}", self.quotas.job_bytes)
        service = Service(request, command, check, output, self._events)
        with one_error():
            await self._nursery.start(self._live, service)
        late = False
        try:
            with trio.move_on_after(patience):
                await service.settled.wait()
        finally:
            if not service.settled.is_set():
                late = True
                with trio.CancelScope(shield=True):
                    await service.stop(GRACE)
        if late:
            message = f"the service {service.name!r} was not ready within {patience:g} s and was stopped; "
            raise CallError("deadline_exceeded", message + service.log_end())
        if service.ended.is_set():
            message = f"the service {service.name!r} ended before it was ready: {service.how_it_ended()}"
            raise CallError("failed_precondition", message)
        return service.info()

    def _check_name(self, agent: str, name: str) -> None:
        check_name(name, "a service's")
        known = self._services.get((agent, name))
        if known is not None and not known.ended.is_set():
            raise CallError("failed_precondition", f"there is a service {name!r} already: stop it first")
        if sum(not service.ended.is_set() for service in self._services.values()) >= self.quotas.active_services:
            message = f"active service limit reached ({self.quotas.active_services}): stop one first"
            raise CallError("resource_exhausted", message, retryable=True)

    async def _live(self, service: Service, task_status: trio.TaskStatus[None]) -> None:
        self._check_name(service.owner, service.name)
        key = service.owner, service.name
        before = self._services.pop(key, None)
        self._services[key] = service
        try:
            await service.live(task_status.started)
        except CallError:
            del self._services[key]  # it could not be started
            raise
        finally:
            if before is not None:
                with trio.CancelScope(shield=True):
                    await before.output.evict()
        await self._forget_oldest()

    async def get(self, request: GetService) -> ServiceInfo:
        return self._service(request.agent, request.name).info()

    async def list_all(self, request: ListServices) -> list[ServiceInfo]:
        return [service.info() for service in self._services.values() if service.owner == request.agent]

    async def read(self, request: ReadService) -> OutputRange:
        output = self._service(request.agent, request.name).output
        return await read_output(output, request.cursor, request.max_bytes, request.wait)

    async def stop(self, request: StopService) -> ServiceInfo:
        grace = waiting(request.grace, "grace", GRACE_LIMIT)
        service = self._service(request.agent, request.name)
        await service.stop(grace)
        return service.info()

    async def close_agent(self, agent: str) -> list[ServiceInfo]:
        """Stop the agent's services; returns those that run on, as declared."""
        mine = [service for service in self._services.values() if service.owner == agent]
        left = [service.info() for service in mine if service.keep and not service.ended.is_set()]
        async with trio.open_nursery() as nursery:
            for service in mine:
                if service.keep:
                    nursery.start_soon(service.let_go)
                else:
                    nursery.start_soon(service.stop, GRACE)
        for service in mine:
            del self._services[service.owner, service.name]
            await service.output.evict()
        return left

    def _service(self, agent: str, name: str) -> Service:
        service = self._services.get((agent, name))
        if service is None:
            raise CallError("not_found", f"there is no service {name!r} of this agent")
        return service

    async def _forget_oldest(self) -> None:
        ended = [key for key, service in self._services.items() if service.ended.is_set()]
        for key in ended[: max(len(ended) - REMEMBERED, 0)]:
            await self._services.pop(key).output.evict()


@asynccontextmanager
async def open_services(
    place: Place, disk: Disk, events: Events, jobs: Jobs, quotas: Quotas
) -> AsyncIterator[Services]:
    """The services of a session; leaving stops all but those that were declared to run on. Cancellation: the same."""
    with one_error():
        async with trio.open_nursery() as nursery:
            services = Services(place, disk, events, jobs, quotas, nursery)
            try:
                yield services
            finally:
                nursery.cancel_scope.cancel("the session is ending")
