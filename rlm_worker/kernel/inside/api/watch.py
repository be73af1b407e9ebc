"""`rlm.watch`: being told of what changes, as cells see it."""

from __future__ import annotations

import os

from rlm_wire.methods.watches import CancelWatch, GetWatch, ListWatches, WatchInfo, WatchJob, WatchPath
from rlm_worker.kernel.inside.api.calls import Calls, operation
from rlm_worker.kernel.inside.api.shell import ShellJob


class Watch:
    """A watch as it was when it was asked about: `id`, `kind`, `target`, `recursive`, `status`, `error`."""

    def __init__(self, calls: Calls, info: WatchInfo) -> None:
        self._calls = calls
        self.id = info.id
        self.kind = info.kind
        self.target = info.target
        self.recursive = info.recursive
        self.status = info.status
        self.error = info.error

    def __repr__(self) -> str:
        return f"<{self.id} of {self.target}: {self.status}>"

    @operation
    async def cancel(self) -> Watch:
        """End it; what it has not told yet is dropped."""
        return Watch(self._calls, await self._calls.request(CancelWatch("", self.id)))


class Watches:
    """Each change leads to an event in the inbox; what happens within 200 ms is one."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @operation
    async def path(self, path: str | os.PathLike[str], *, recursive: bool = False) -> Watch:
        """Watch a file, or a directory and what is directly in it (`recursive`: anywhere below)."""
        return Watch(self._calls, await self._calls.request(WatchPath("", os.fspath(path), recursive)))

    @operation
    async def job(self, job: ShellJob | str) -> Watch:
        """Watch the output of a job."""
        job_id = job.id if isinstance(job, ShellJob) else job
        return Watch(self._calls, await self._calls.request(WatchJob("", job_id)))

    @operation
    async def get(self, watch_id: str) -> Watch:
        """A watch by its id, as it is now."""
        return Watch(self._calls, await self._calls.request(GetWatch("", watch_id)))

    @operation
    async def list(self) -> list[WatchInfo]:
        """All watches this agent has set, oldest first, also ended ones."""
        return await self._calls.request(ListWatches(""))
