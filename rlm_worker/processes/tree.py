"""Ending everything that descends from a process. Runs in the reaper, the subreaper that orphans fall to.

The tree of a command is what descends from it when it is stopped, in whatever session or group, and what was orphaned
inside a session that one of these leads. What had been orphaned into a session of its own before is a daemon and not
touched. So that nothing slips away by forking, the tree is frozen first and read again until it is all at a standstill;
what belonged to it then belongs to it for good, even if the signal makes its parents die first.

With a leaf, freezing is one write, and daemons are moved to a leaf of their own before the first signal: from then on,
whatever the leaf holds belongs to the tree.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from rlm_worker.processes import process_table
from rlm_worker.processes.cgroups import Leaf
from rlm_worker.processes.process_table import Identity, Row

FREEZE_ROUNDS = 200
"""Rounds of stopping and reading again. A fork loop is caught in a few; a process that cannot be stopped never is."""


class Tree:
    """The processes that descend from `roots`: process `leader`, which leads a session, and children of its own.

    `adopter` is the pid that orphans are reparented to (None: it may be any). `leaf` is where the processes were born,
    and `daemons_leaf` gives one to move daemons to.
    """

    def __init__(
        self,
        roots: set[Identity],
        leader: int,
        adopter: int | None,
        leaf: Leaf | None = None,
        daemons_leaf: Callable[[], Leaf] | None = None,
    ) -> None:
        self._adopter = adopter
        self._leaf = leaf
        self._daemons_leaf = daemons_leaf
        self._known = roots
        self._leaders = {leader}
        self._signalled = False
        self.killed: set[Identity] = set()
        """What has got SIGKILL; it is not alive for much longer."""

    def living(self, rows: dict[int, Row] | None = None) -> list[Row]:
        """What of the tree is alive now, as far as `rows` (else the whole table) shows; remembers all of it."""
        rows = process_table.table() if rows is None else rows
        children: dict[int, list[Row]] = {}
        for row in rows.values():
            children.setdefault(row.parent, []).append(row)
        frontier = [row for row in rows.values() if self._belongs(row)]
        if self._leaf is not None and self._signalled:
            frontier += [rows[pid] for pid in self._leaf.pids() if pid in rows]
        members: dict[int, Row] = {}
        while frontier:
            row = frontier.pop()
            if row.pid not in members and row.pid != self._adopter:
                members[row.pid] = row
                frontier += children.get(row.pid, ())
        self._known.update(row.identity for row in members.values())
        self._leaders.update(members)
        return [row for row in members.values() if row.alive]

    def remaining(self) -> list[Row]:
        """What of the tree is alive after it was signalled; cheap as long as something of it is known to be alive.

        Reads the whole process table only if nothing is, to see whether that is all. With a leaf, it is.
        """
        if self._leaf is not None:
            rows = process_table.table([*self._leaf.pids(), *(pid for pid, _ in self._known)])
            return self.living(rows)
        rows = process_table.table(pid for pid, _ in self._known)
        alive = [row for row in rows.values() if row.identity in self._known and row.alive]
        self._known = {row.identity for row in alive}
        return alive or self.living()

    def signal(self, number: int) -> bool:
        """Send `number` to all of the tree, frozen; all but SIGKILL let it go on afterwards. False if none is left."""
        if self._leaf is not None:
            self._leaf.freeze()
        members = self.living()
        if self._leaf is not None and not self._signalled:
            self._release_daemons(self._leaf, {member.pid for member in members})
        self._signalled = True
        members = self._freeze(members)
        if self._leaf is not None and number == signal.SIGKILL:
            self._leaf.kill()
        for member in members:
            _kill(member.pid, number)
        if number == signal.SIGKILL:
            self.killed.update(member.identity for member in members)
        else:
            for member in members:
                _kill(member.pid, signal.SIGCONT)
        if self._leaf is not None:
            self._leaf.thaw()
        return bool(members)

    def _belongs(self, row: Row) -> bool:
        orphan = self._adopter is None or row.parent == self._adopter
        return row.identity in self._known or (orphan and row.session in self._leaders)

    def _release_daemons(self, leaf: Leaf, members: set[int]) -> None:
        daemons = [pid for pid in leaf.pids() if pid not in members]
        if daemons and self._daemons_leaf is not None:
            place = self._daemons_leaf()
            for pid in daemons:
                with suppress(ProcessLookupError):
                    place.add(pid)

    def _freeze(self, members: list[Row]) -> list[Row]:
        """Stop all of the tree; returns it once no member runs and none is new."""
        told: set[int] = set()
        for _ in range(FREEZE_ROUNDS):
            frozen = set() if self._leaf is None else set(self._leaf.pids())
            # One that sleeps uninterruptibly (also a vfork parent) stops before it runs another instruction.
            running = [
                member.pid
                for member in members
                if member.pid not in frozen
                and member.state not in b"Tt"
                and not (member.state == b"D" and member.pid in told)
            ]
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
