"""Ending everything that descends from a process. Runs in the reaper, the subreaper that orphans fall to.

The tree of a command is what descends from it when it is stopped, in whatever session or group, and what was orphaned
inside a session that one of these leads. What had been orphaned into a session of its own before is a daemon and not
touched. So that nothing slips away by forking, the tree is frozen first and read again until it is all at a standstill;
what belonged to it then belongs to it for good, even if the signal makes its parents die first.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from rlm_worker.processes import process_table
from rlm_worker.processes.process_table import Identity, Row

FREEZE_ROUNDS = 200
"""Rounds of stopping and reading again. A fork loop is caught in a few; a process that cannot be stopped never is."""


class Tree:
    """The processes that descend from `root`; `reaper` is the pid that orphans are reparented to."""

    def __init__(self, root: Identity, reaper: int) -> None:
        self._reaper = reaper
        self._known: set[Identity] = {root}
        self._leaders = {root[0]}

    def living(self) -> list[Row]:
        """What of the tree is alive now; remembers all of it."""
        rows = process_table.table()
        children: dict[int, list[Row]] = {}
        for row in rows.values():
            children.setdefault(row.parent, []).append(row)
        frontier = [row for row in rows.values() if row.identity in self._known]
        frontier += [row for row in children.get(self._reaper, ()) if row.session in self._leaders]
        members: dict[int, Row] = {}
        while frontier:
            row = frontier.pop()
            if row.pid not in members and row.pid != self._reaper:
                members[row.pid] = row
                frontier += children.get(row.pid, ())
        self._known.update(row.identity for row in members.values())
        self._leaders.update(members)
        return [row for row in members.values() if row.alive]

    def signal(self, number: int) -> bool:
        """Send `number` to all of the tree, frozen; all but SIGKILL let it go on afterwards. False if none is left."""
        members = self._freeze()
        for member in members:
            _kill(member.pid, number)
        if number != signal.SIGKILL:
            for member in members:
                _kill(member.pid, signal.SIGCONT)
        return bool(members)

    def _freeze(self) -> list[Row]:
        """Stop all of the tree; returns it once no member runs and none is new."""
        told: set[int] = set()
        members = self.living()
        for _ in range(FREEZE_ROUNDS):
            # One that sleeps uninterruptibly (also a vfork parent) stops before it runs another instruction.
            running = [m.pid for m in members if m.state not in b"Tt" and not (m.state == b"D" and m.pid in told)]
            if not running:
                break
            for pid in running:
                _kill(pid, signal.SIGSTOP)
            told.update(running)
            os.sched_yield()
            members = self.living()
        return members


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone meanwhile; or it has taken another user's identity
        os.kill(pid, number)
