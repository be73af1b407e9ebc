"""Jobs, services and watches of one agent, for the harness: a method for each request, and nothing else.

Their requests in `rlm_wire.methods` say what each does, its limits and what it fails with (CallError). Cancelling a
call stops the waiting and never touches a job; a service whose start is cancelled is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Never

import rlm_wire
from rlm_wire.methods import jobs, services, watches
from rlm_wire.methods.tools import OutputChunk

Command = str | Sequence[str]


class AgentJobs:
    """`AgentTools.jobs`: background shell commands; see `rlm_wire.methods.jobs`."""

    def __init__(self, peer: rlm_wire.Peer, agent: str) -> None:
        self._peer = peer
        self._agent = agent

    async def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        yield_after: float = 10.0,
        timeout: float | None = None,
        stdin: bool = False,
        tty: bool = False,
    ) -> jobs.Job:
        """Start a job and wait for its end, `yield_after` seconds at most. `tty`: it runs in a terminal."""
        request = jobs.RunJob(self._agent, _command(command), cwd, _copy(env), yield_after, timeout, stdin, tty)
        return await self._peer.call(request)

    async def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        tty: bool = False,
    ) -> jobs.Job:
        """Start a job; its end is told by an event."""
        return await self.run(command, cwd=cwd, env=env, yield_after=0.0, timeout=timeout, stdin=stdin, tty=tty)

    async def result(self, job: str, *, yield_after: float = 300.0) -> jobs.Job:
        """A job once it has ended, or as it is after `yield_after` seconds."""
        return await self._peer.call(jobs.JobResult(self._agent, job, yield_after))

    async def get(self, job: str) -> jobs.JobInfo:
        """What is known of a job."""
        return await self._peer.call(jobs.GetJobInfo(self._agent, job))

    async def list(self) -> list[jobs.JobInfo]:
        """All jobs of the agent, oldest first."""
        return await self._peer.call(jobs.ListJobs(self._agent))

    async def read(self, job: str, *, cursor: int = 0, max_bytes: int = 16_384, wait: float = 0.0) -> jobs.OutputRange:
        """Output from byte `cursor` on; waits up to `wait` seconds for some."""
        return await self._peer.call(jobs.ReadJob(self._agent, job, cursor, max_bytes, wait))

    def follow(
        self, job: str, *, cursor: int = 0
    ) -> AbstractAsyncContextManager[rlm_wire.Call[jobs.JobInfo, OutputChunk, Never]]:
        """An open call: iterate it for live output, then `await call.result()`."""
        return self._peer.open(jobs.FollowJob(self._agent, job, cursor))

    async def cancel(self, job: str, *, grace: float = 1.0) -> jobs.JobInfo:
        """Stop a job and all that descends from it; returns when it is gone."""
        return await self._peer.call(jobs.CancelJob(self._agent, job, grace))

    async def write(self, job: str, data: bytes) -> None:
        """Write to the stdin of a job, or type at its terminal; waits while it does not read."""
        await self._peer.call(jobs.WriteJob(self._agent, job, data))

    async def close_stdin(self, job: str) -> None:
        """End of file on the stdin of a job; Ctrl-D at its terminal."""
        await self._peer.call(jobs.CloseJobStdin(self._agent, job))

    async def resize(self, job: str, rows: int, cols: int) -> None:
        """Give the terminal of a job another size."""
        await self._peer.call(jobs.ResizeJob(self._agent, job, rows, cols))

    async def setenv(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Set variables for all later jobs and services of the agent; returns all that are set."""
        return await self._peer.call(jobs.SetEnvironment(self._agent, dict(variables)))

    async def getenv(self) -> dict[str, str]:
        """What `setenv` has set."""
        return await self._peer.call(jobs.GetEnvironment(self._agent))


class AgentServices:
    """`AgentTools.services`: declared long-lived processes; see `rlm_wire.methods.services`."""

    def __init__(self, peer: rlm_wire.Peer, agent: str) -> None:
        self._peer = peer
        self._agent = agent

    async def start(
        self,
        name: str,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        ready: services.Ready | None = None,
        ready_timeout: float = 60.0,
        restart: services.Restart = "never",
        keep: bool = False,
    ) -> services.ServiceInfo:
        """Start a service and return once it is ready. `keep`: it outlives the session."""
        request = services.StartService(
            self._agent, name, _command(command), cwd, _copy(env), ready, ready_timeout, restart, keep
        )
        return await self._peer.call(request)

    async def get(self, name: str) -> services.ServiceInfo:
        """What is known of a service."""
        return await self._peer.call(services.GetService(self._agent, name))

    async def list(self) -> list[services.ServiceInfo]:
        """All services of the agent, oldest first."""
        return await self._peer.call(services.ListServices(self._agent))

    async def read(self, name: str, *, cursor: int = 0, max_bytes: int = 16_384, wait: float = 0.0) -> jobs.OutputRange:
        """Its log from byte `cursor` on; waits up to `wait` seconds for some."""
        return await self._peer.call(services.ReadService(self._agent, name, cursor, max_bytes, wait))

    async def stop(self, name: str, *, grace: float = 5.0) -> services.ServiceInfo:
        """Stop a service and all that descends from it; returns when it is gone."""
        return await self._peer.call(services.StopService(self._agent, name, grace))


class AgentWatches:
    """`AgentTools.watches`: being told of changes by events; see `rlm_wire.methods.watches`."""

    def __init__(self, peer: rlm_wire.Peer, agent: str) -> None:
        self._peer = peer
        self._agent = agent

    async def path(self, path: str, *, recursive: bool = False) -> watches.WatchInfo:
        """Watch a file, or a directory and what is directly in it (`recursive`: anywhere below)."""
        return await self._peer.call(watches.WatchPath(self._agent, path, recursive))

    async def job(self, job: str) -> watches.WatchInfo:
        """Watch the output of a job."""
        return await self._peer.call(watches.WatchJob(self._agent, job))

    async def get(self, watch: str) -> watches.WatchInfo:
        """A watch as it is now."""
        return await self._peer.call(watches.GetWatch(self._agent, watch))

    async def list(self) -> list[watches.WatchInfo]:
        """All watches that the agent has set, oldest first."""
        return await self._peer.call(watches.ListWatches(self._agent))

    async def cancel(self, watch: str) -> watches.WatchInfo:
        """End a watch."""
        return await self._peer.call(watches.CancelWatch(self._agent, watch))


def _command(command: Command) -> str | list[str]:
    return command if isinstance(command, str) else list(command)


def _copy(env: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if env is None else dict(env)
