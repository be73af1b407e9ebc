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
from rlm_worker.processes.process_table import Identity, Row, Snapshot

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
        self._members: list[Row] = []
        self._told: set[int] = set()
        self.killed: set[Identity] = set()
        """What has got SIGKILL; it is not alive for much longer."""

    def living(self, seen: Snapshot) -> list[Row]:
        """What of the tree is alive, as far as is seen; remembers all of it."""
        frontier = [row for pid, start in self._known if (row := seen.rows.get(pid)) and row.start == start]
        for leader in self._leaders:
            frontier += [row for row in seen.sessions.get(leader, ()) if self._adopter in (None, row.parent)]
        if self._leaf is not None and self._signalled:
            frontier += [seen.rows[pid] for pid in self._leaf.pids() if pid in seen.rows]
        members: dict[int, Row] = {}
        while frontier:
            row = frontier.pop()
            if row.pid not in members and row.pid != self._adopter:
                members[row.pid] = row
                frontier += seen.children.get(row.pid, ())
        self._known.update(row.identity for row in members.values())
        self._leaders.update(members)
        return [row for row in members.values() if row.alive]

    def remaining(self) -> list[Row]:
        """What is known to be of the tree and alive after it was signalled. With a leaf, this is all of it."""
        if self._leaf is not None:
            return self.living(Snapshot(process_table.table([*self._leaf.pids(), *(pid for pid, _ in self._known)])))
        rows = process_table.table(pid for pid, _ in self._known)
        alive = [row for row in rows.values() if row.identity in self._known and row.alive]
        self._known = {row.identity for row in alive}
        return alive

    def knows(self, pids: set[int]) -> bool:
        """Whether one of these is of the tree."""
        return any(pid in pids for pid, _ in self._known)

    # The steps of `signal_all`.

    def hold(self) -> None:
        if self._leaf is not None:
            self._leaf.freeze()

    def look(self, seen: Snapshot) -> None:
        self._members = self.living(seen)
        if self._leaf is not None and not self._signalled:
            self._release_daemons(self._leaf, {member.pid for member in self._members})
        self._signalled = True

    def stop_moving(self) -> bool:
        """Stop what of the tree runs; False if nothing did, so that the tree is as it was seen."""
        frozen = set() if self._leaf is None else set(self._leaf.pids())
        # One that sleeps uninterruptibly (also a vfork parent) stops before it runs another instruction.
        running = [
            member.pid
            for member in self._members
            if member.pid not in frozen
            and member.state not in b"Tt"
            and not (member.state == b"D" and member.pid in self._told)
        ]
        for pid in running:
            _kill(pid, signal.SIGSTOP)
        self._told.update(running)
        return bool(running)

    def send(self, number: int) -> None:
        if self._leaf is not None and number == signal.SIGKILL:
            self._leaf.kill()
        for member in self._members:
            _kill(member.pid, number)
        if number == signal.SIGKILL:
            self.killed.update(member.identity for member in self._members)
        else:
            for member in self._members:
                _kill(member.pid, signal.SIGCONT)
        if self._leaf is not None:
            self._leaf.thaw()
        self._told.clear()

    def _release_daemons(self, leaf: Leaf, members: set[int]) -> None:
        daemons = [pid for pid in leaf.pids() if pid not in members]
        if daemons and self._daemons_leaf is not None:
            place = self._daemons_leaf()
            for pid in daemons:
                with suppress(ProcessLookupError):
                    place.add(pid)


def signal_all(orders: list[tuple[Tree, int]]) -> None:
    """Send each tree its signal, frozen; all but SIGKILL let it go on afterwards.

    Reading the table takes long where much runs, so it is read for all of them at once.
    """
    for tree, _ in orders:
        tree.hold()
    moving = [tree for tree, _ in orders]
    for _ in range(FREEZE_ROUNDS):
        if not moving:
            break
        seen = Snapshot()
        for tree in moving:
            tree.look(seen)
        moving = [tree for tree in moving if tree.stop_moving()]
        os.sched_yield()
    for tree, number in orders:
        tree.send(number)


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone meanwhile; or it has taken another user's identity
        os.kill(pid, number)
