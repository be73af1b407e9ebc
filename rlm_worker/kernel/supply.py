"""Where kernels come from: one host for the whole worker, and one spare kernel, so that an agent need not wait.

The host is started when first needed, or ahead of that by `warm`; when it dies, the next request starts another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import trio

from rlm_wire.errors import CallError
from rlm_worker.kernel.hosts import Host, start_host
from rlm_worker.kernel.process import KernelProcess, start_kernel
from rlm_worker.processes import Reaper


class KernelHost:
    """Gives kernels. Made by `open_kernel_host`."""

    def __init__(self, reaper: Reaper, env: Mapping[str, str], nursery: trio.Nursery) -> None:
        self._reaper = reaper
        self._env = dict(env)
        self._nursery = nursery
        self._host: Host | None = None
        self._starting = trio.Lock()
        self._spare: KernelProcess | None = None
        self._refilling = False

    async def warm(self) -> None:
        """Start the host now, and a spare kernel behind it, so that the first kernel is quick.

        Raises CallError: "unimplemented" if IPython is not installed, else as spawning does.
        Cancellation: leaves the host starting.
        """
        await self._ready_host()
        self._refill()

    async def kernel(self) -> KernelProcess:
        """A fresh kernel, which is now the caller's to run.

        Raises CallError as `warm`, or "resource_exhausted" if no process can be forked. Cancellation: none is started.
        """
        kernel, self._spare = self._spare, None
        if kernel is not None and kernel.has_ended():
            kernel.discard()
            kernel = None
        if kernel is None:
            kernel = await self._fork()
        self._refill()
        return kernel

    def discard(self) -> None:
        """Let the spare kernel go."""
        if self._spare is not None:
            self._spare.discard()
            self._spare = None

    def _refill(self) -> None:
        if self._spare is None and not self._refilling:
            self._refilling = True
            self._nursery.start_soon(self._make_spare)

    async def _make_spare(self) -> None:
        try:
            with suppress(CallError):  # whoever asks for a kernel will be told
                self._spare = await self._fork()
        finally:
            self._refilling = False

    async def _fork(self) -> KernelProcess:
        host = await self._ready_host()
        try:
            return await start_kernel(host, self._reaper)
        except CallError:
            if not host.gone.is_set():
                raise
        return await start_kernel(await self._ready_host(), self._reaper)  # it died just now: once more, with another

    async def _ready_host(self) -> Host:
        async with self._starting:
            if self._host is None or self._host.gone.is_set():
                self._host = await start_host(self._reaper, self._env, self._nursery)
            host = self._host
        await host.ready.wait()
        if host.unusable:
            raise CallError("unimplemented", host.unusable)
        if host.gone.is_set():
            status = await host.process.wait()
            raise CallError("unavailable", f"The kernel host ended with status {status}.", retryable=True)
        return host


@asynccontextmanager
async def open_kernel_host(reaper: Reaper, *, env: Mapping[str, str]) -> AsyncIterator[KernelHost]:
    """The source of a worker's kernels; nothing runs until it is warmed or a kernel is asked for.

    `env` is the host's own environment: no secrets, the kernels of all sessions descend from it. On leaving, the host
    ends; kernels must have been closed before. Cancellation: as leaving.
    """
    async with trio.open_nursery() as nursery:
        host = KernelHost(reaper, env, nursery)
        try:
            yield host
        finally:
            nursery.cancel_scope.cancel()
            host.discard()
