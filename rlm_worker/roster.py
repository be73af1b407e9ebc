"""Whose processes are whose: each process of a session with its agent, its kind, and what ends it.

Whoever starts a process adds it. What runs at a moment is always asked of the reaper, never kept.
"""

from __future__ import annotations

from typing import NamedTuple

from rlm_wire.errors import CallError
from rlm_wire.methods.processes import Kind, Lifetime, ProcessInfo, Receipt
from rlm_worker.processes import Process, Reaper, Running, started_at

_LIFETIMES: dict[Kind, Lifetime] = {
    "kernel": "agent",
    "cell child": "kernel",
    "command": "call",
    "background job": "survives",
    "daemon": "survives",
    "job": "agent",
    "service": "agent",
}

_SPARE = 64
"""Ended processes that may be remembered in vain before they are looked for."""


class Owner(NamedTuple):
    """`survives`: declared to run on when its agent and its session end, with all that descends from it."""

    agent: str
    kind: Kind
    survives: bool = False


class Roster:
    """The processes of one session."""

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._entries: dict[int, tuple[Process, Owner]] = {}
        self._limit = _SPARE
        self._stopped: dict[tuple[int, int], ProcessInfo] = {}

    def add(self, process: Process, owner: Owner) -> None:
        """Remember a process that was started for this session."""
        if len(self._entries) >= self._limit:
            self._entries = {key: entry for key, entry in self._entries.items() if not entry[0].ended or entry[0].left}
            self._limit = 2 * len(self._entries) + _SPARE
        self._entries[process.key] = process, owner

    async def processes(self) -> list[ProcessInfo]:
        """What of the session runs now, and what runs of which nobody knows whose it is.

        Raises CallError("unavailable") if the reaper was killed. Cancellation: harmless.
        """
        described = [self._describe(running) for running in await self._reaper.running()]
        return [process for process in described if process is not None]

    async def expect_end(self, agent: str) -> None:
        """All of this agent that does not survive is about to be stopped: it will be in the receipt."""
        for process in await self.processes():
            if process.agent == agent and process.lifetime != "survives":
                self._stopped[process.pid, process.start_time] = process

    async def receipt(self) -> Receipt:
        """The evidence, once everything was stopped. Cancellation: harmless."""
        try:
            tier, alive = await self._reaper.tier(), await self.processes()
        except CallError as error:  # nobody will ever be able to tell
            return Receipt(confirmed=False, stopped=list(self._stopped.values()), error=error.message)
        identities = {(process.pid, process.start_time) for process in alive}
        remaining = [process for process in alive if process.lifetime != "survives"]
        return Receipt(
            confirmed=not remaining,
            tier=tier,
            stopped=[process for identity, process in self._stopped.items() if identity not in identities],
            declared=[process for process in alive if process.lifetime == "survives" and process.kind == "service"],
            unknown=[process for process in alive if process.lifetime == "survives" and process.kind != "service"],
            remaining=remaining,
            error="processes that were killed are still there: they may be waiting for a disk" if remaining else None,
            retryable=bool(remaining),
        )

    def _describe(self, running: Running) -> ProcessInfo | None:
        entry = self._entries.get(running.key)
        if entry is None and running.key:
            return None  # another session's, or the worker's own
        owner = entry[1] if entry is not None else None
        kind = _kind(running, owner)
        return ProcessInfo(
            pid=running.pid,
            start_time=running.start_time,
            started_at=started_at(running.start_time),
            command=running.command,
            kind=kind,
            lifetime="survives" if owner is not None and owner.survives else _LIFETIMES[kind],
            agent=owner.agent if owner is not None else None,
        )


def _kind(running: Running, owner: Owner | None) -> Kind:
    if owner is None or (running.role == "daemon" and not owner.survives):
        return "daemon"
    if running.role == "job" and not owner.survives:
        return "background job"
    if owner.kind == "kernel" and running.role == "member":
        return "cell child"
    return owner.kind
