"""All watches of a session: whose they are, how many there may be, and the events they lead to."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError
from rlm_wire.methods.events import JobOutputGrew, PathChanged, WatchFailed
from rlm_wire.methods.sessions import Quotas
from rlm_wire.methods.watches import (
    CancelWatch,
    GetWatch,
    ListWatches,
    WatchInfo,
    WatchJob,
    WatchKind,
    WatchPath,
    WatchStatus,
)
from rlm_worker.events import Events
from rlm_worker.jobs.commands import Place
from rlm_worker.jobs.job import ShellJob
from rlm_worker.jobs.table import Jobs
from rlm_worker.paths import checked_path
from rlm_worker.watches.notify import Notify, open_notify
from rlm_worker.watches.paths import BATCH, PathWatch

T = TypeVar("T")


class Watch:
    """One watch, whatever it watches."""

    def __init__(self, watch_id: str, owner: str, kind: WatchKind, target: str, *, recursive: bool = False) -> None:
        self.id = watch_id
        self.owner = owner
        self.status: WatchStatus = "active"
        self.error: str | None = None
        self.scope = trio.CancelScope()
        self.target = target
        self._kind: WatchKind = kind
        self._recursive = recursive
        self._created_at = time.time()

    def info(self) -> WatchInfo:
        return WatchInfo(
            self.id, self.owner, self._kind, self.target, self.status, self._created_at, self._recursive, self.error
        )


class Watches:
    """The watches of one session, each the business of its agent alone. Made by `open_watches`."""

    def __init__(
        self, place: Place, notify: Notify, events: Events, jobs: Jobs, quotas: Quotas, nursery: trio.Nursery
    ) -> None:
        self.quotas = quotas
        self._place = place
        self._notify = notify
        self._events = events
        self._jobs = jobs
        self._nursery = nursery
        self._watches: dict[str, Watch] = {}
        self._registered = 0

    async def path(self, request: WatchPath) -> WatchInfo:
        path = checked_path(request.path)
        target = await trio.to_thread.run_sync(os.path.realpath, Path(self._place.cwd, path))
        paths = PathWatch(self._notify, target, recursive=request.recursive)
        watch = self._register(request.agent, "path", target, recursive=request.recursive)
        try:
            await paths.begin()
        except BaseException:
            paths.end()
            del self._watches[watch.id]
            raise
        self._nursery.start_soon(self._live, watch, self._follow_path, paths)
        return watch.info()

    async def job(self, request: WatchJob) -> WatchInfo:
        job = self._jobs.job(request.agent, request.job)
        watch = self._register(request.agent, "job", job.id)
        if job.output.finished:
            watch.status = "completed"
        else:
            self._nursery.start_soon(self._live, watch, self._follow_job, job)
        return watch.info()

    async def get(self, request: GetWatch) -> WatchInfo:
        return self._watch(request.agent, request.watch).info()

    async def list_all(self, request: ListWatches) -> list[WatchInfo]:
        return [watch.info() for watch in self._watches.values() if watch.owner == request.agent]

    async def cancel(self, request: CancelWatch) -> WatchInfo:
        watch = self._watch(request.agent, request.watch)
        self._cancel(watch)
        return watch.info()

    def close_agent(self, agent: str) -> None:
        """End the agent's watches and forget them."""
        for watch in [watch for watch in self._watches.values() if watch.owner == agent]:
            self._cancel(watch)
            del self._watches[watch.id]

    def _register(self, agent: str, kind: WatchKind, target: str, *, recursive: bool = False) -> Watch:
        active = sum(watch.status == "active" for watch in self._watches.values())
        if active >= self.quotas.watches:
            message = f"active watch limit reached ({self.quotas.watches}): cancel one first"
            raise CallError("resource_exhausted", message, retryable=True)
        if self._registered >= self.quotas.registered_watches:
            raise CallError("resource_exhausted", f"watch limit reached ({self.quotas.registered_watches} in all)")
        self._registered += 1
        watch = Watch(f"watch-{self._registered}", agent, kind, target, recursive=recursive)
        self._watches[watch.id] = watch
        return watch

    def _watch(self, agent: str, name: str) -> Watch:
        watch = self._watches.get(name)
        if watch is None or watch.owner != agent:
            raise CallError("not_found", f"unknown subscription or not owned by this agent: {name!r}")
        return watch

    def _cancel(self, watch: Watch) -> None:
        if watch.status == "active":
            watch.status = "cancelled"
            watch.scope.cancel("the watch was cancelled")

    async def _live(self, watch: Watch, follow: Callable[[Watch, T], Awaitable[None]], subject: T) -> None:
        with watch.scope:
            try:
                await follow(watch, subject)
            except CallError as error:
                watch.status, watch.error = "failed", error.message
                self._events.publish(watch.owner, WatchFailed(watch.id, watch.target, error.message))

    async def _follow_path(self, watch: Watch, paths: PathWatch) -> None:
        try:
            while True:
                batch = await paths.next_batch()
                content = PathChanged(watch.id, watch.target, batch.paths(), batch.truncated)
                self._events.publish(watch.owner, content)
        finally:
            paths.end()

    async def _follow_job(self, watch: Watch, job: ShellJob) -> None:
        start = job.output.total
        while not job.output.finished:
            await job.output.wait_beyond(start)
            with trio.move_on_after(BATCH):
                await job.output.wait_finished()
            if job.output.total > start:
                self._events.publish(watch.owner, JobOutputGrew(watch.id, job.id, start, job.output.total))
                start = job.output.total
        watch.status = "completed"


@asynccontextmanager
async def open_watches(place: Place, events: Events, jobs: Jobs, quotas: Quotas) -> AsyncIterator[Watches]:
    """The watches of a session, which end with the block."""
    with one_error():
        async with open_notify() as notify, trio.open_nursery() as nursery:
            try:
                yield Watches(place, notify, events, jobs, quotas, nursery)
            finally:
                nursery.cancel_scope.cancel("the session is ending")
