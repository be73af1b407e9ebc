"""What runs beside an agent's tool calls: jobs, services, watches, and the events about them.

`OPERATIONS` says which request leads to which method; harness and cells use the same ones. The agent in a request has
been checked by whoever passes it on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from rlm_wire.errors import CallError
from rlm_wire.methods import jobs as job_methods
from rlm_wire.methods import services as service_methods
from rlm_wire.methods import watches as watch_methods
from rlm_wire.methods.base import Request
from rlm_wire.methods.sessions import Quotas
from rlm_worker.events import Events
from rlm_worker.jobs.commands import Place
from rlm_worker.jobs.disk import Disk, open_disk
from rlm_worker.jobs.table import Jobs, open_jobs
from rlm_worker.services.table import Services, open_services
from rlm_worker.watches.table import Watches, open_watches

LEAST_JOB_BYTES = 128 * 1024


class Background:
    """One session's jobs, services, watches and events. Made by `open_background`."""

    def __init__(self, disk: Disk, events: Events, jobs: Jobs, services: Services, watches: Watches) -> None:
        self.events = events
        self.jobs = jobs
        self.services = services
        self.watches = watches
        self._disk = disk

    def grant(self, quotas: Quotas) -> None:
        """Work within these from now on. Raises CallError("invalid_argument")."""
        if min(msgspec.structs.astuple(quotas)) < 0 or quotas.job_bytes < LEAST_JOB_BYTES:
            raise CallError("invalid_argument", f"quotas are not negative, and job_bytes is at least {LEAST_JOB_BYTES}")
        self.jobs.quotas = self.services.quotas = self.watches.quotas = quotas
        self._disk.limit = quotas.total_bytes

    async def close_agent(self, agent: str) -> tuple[int, list[str]]:
        """End what the agent has in the background: how many commands were stopped, and what is to run on.

        Cancellation: it ends all the same, but perhaps after this has returned.
        """
        self.watches.close_agent(agent)
        left = await self.services.close_agent(agent)
        stopped = await self.jobs.close_agent(agent)
        return stopped, [f"The service {info.name!r} runs on, as declared: pid {info.pid}" for info in left]


@asynccontextmanager
async def open_background(place: Place) -> AsyncIterator[Background]:
    """A session's background. Leaving ends all jobs, and all services but those that were declared to run on."""
    quotas = Quotas()
    events = Events()
    async with (
        open_disk(lambda: place.env.get("TMPDIR"), quotas.total_bytes) as disk,
        open_jobs(place, disk, events, quotas) as jobs,
        open_services(place, disk, events, jobs, quotas) as services,
        open_watches(place, events, jobs, quotas) as watches,
    ):
        yield Background(disk, events, jobs, services, watches)


Operation = Callable[[Any], Awaitable[Any]]

OPERATIONS: Final[Mapping[type[Request[Any]], Callable[[Background], Operation]]] = {
    job_methods.RunJob: lambda background: background.jobs.run,
    job_methods.JobResult: lambda background: background.jobs.result,
    job_methods.GetJobInfo: lambda background: background.jobs.info,
    job_methods.ListJobs: lambda background: background.jobs.list_all,
    job_methods.ReadJob: lambda background: background.jobs.read,
    job_methods.CancelJob: lambda background: background.jobs.cancel,
    job_methods.WriteJob: lambda background: background.jobs.write,
    job_methods.CloseJobStdin: lambda background: background.jobs.close_stdin,
    job_methods.ResizeJob: lambda background: background.jobs.resize,
    job_methods.SetEnvironment: lambda background: background.jobs.setenv,
    job_methods.GetEnvironment: lambda background: background.jobs.getenv,
    service_methods.StartService: lambda background: background.services.start,
    service_methods.GetService: lambda background: background.services.get,
    service_methods.ListServices: lambda background: background.services.list_all,
    service_methods.ReadService: lambda background: background.services.read,
    service_methods.StopService: lambda background: background.services.stop,
    watch_methods.WatchPath: lambda background: background.watches.path,
    watch_methods.WatchJob: lambda background: background.watches.job,
    watch_methods.GetWatch: lambda background: background.watches.get,
    watch_methods.ListWatches: lambda background: background.watches.list_all,
    watch_methods.CancelWatch: lambda background: background.watches.cancel,
}
