"""What the reaper remembers of each process it was asked to start or to adopt, and of what these have left running.

An ended command's leftovers are its background jobs, which stayed in its session, and its daemons, which did not. With
leaves they are what its leaves still hold; without, the orphans that are found by their session or by the marker in
the environment they were started with, and so remembered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from rlm_worker.processes import process_table, wire
from rlm_worker.processes.cgroups import Directory, Leaf
from rlm_worker.processes.process_table import Identity, Row, Snapshot
from rlm_worker.processes.tree import Tree

_YOUNG = 2.0
"""Seconds for which pids cannot have wrapped round, so that all that a command started has a higher pid than it."""

_JOB = b"(background job)"

Found = tuple[int, int, Row]
"""Key of the command that started it (0: nobody knows), role, and the process."""


class Command:
    """One process the worker asked for; `output` and `script` are descriptors held for it, -1 if none.

    `adopted`: somebody else's child, a kernel; `start` is its start time, `children` the file in which it notes the
    children it starts, so that they are known when it has died.
    """

    def __init__(self, key: int, pid: int, line: bytes, leaf: Leaf | None) -> None:
        self.key = key
        self.pid = pid
        self.line = line
        self.output = -1
        self.script = -1
        self.children = -1
        self.start = 0
        self.adopted = False
        self.born = time.monotonic()
        self.running = True
        self.released = False
        self.leaf = leaf
        self.daemons: Leaf | None = None
        self.noted: Tree | None = None
        """What descended from it when the worker said that it would end soon."""

    def leaves(self) -> list[Leaf]:
        return [leaf for leaf in (self.leaf, self.daemons) if leaf is not None]

    def remove_leaves(self) -> bool:
        """Remove them if nothing lives in them any more; False if something does."""
        removed = [leaf.remove() for leaf in self.leaves()]
        return all(removed)

    def tree(self, adopter: int | None, directory: Directory | None) -> Tree:
        """What descends from it. The root is looked up: not reaped yet, or else its number is still its session's."""
        if self.noted is not None:
            return self.noted

        def daemons_leaf() -> Leaf:
            assert directory is not None  # only asked for where there are leaves
            self.daemons = self.daemons or directory.leaf()
            return self.daemons

        row = process_table.row(self.pid) if self.running and not self.start else None
        roots = {(self.pid, row.start if row else self.start), *self._noted_children()}
        return Tree(roots, self.pid, adopter, self.leaf, daemons_leaf)

    def _noted_children(self) -> list[Identity]:
        """Those it has started itself that are alive: if it died by surprise, nothing else tells them from daemons."""
        if self.children < 0:
            return []
        noted = os.pread(self.children, wire.CHILD.size * wire.CHILDREN_LIMIT, 0).rstrip(b"\0")
        found = []
        for pid, ticks in wire.CHILD.iter_unpack(noted + bytes(-len(noted) % wire.CHILD.size)):
            row = process_table.row(pid) if pid > 0 else None
            if row is not None and row.start <= ticks:  # else the number is another's by now
                found.append(row.identity)
        return found

    def role(self, row: Row) -> int:
        """What a process is that this command has left running."""
        return wire.JOB if row.session == self.pid else wire.DAEMON


class Commands:
    """All commands of which something is still known, and their leftovers."""

    def __init__(self, adopter: int | None, name: bytes) -> None:
        self._adopter = adopter
        self._name = name
        self._by_key: dict[int, Command] = {}
        self._by_pid: dict[int, Command] = {}
        self._left: dict[int, tuple[int, int]] = {}  # pid of an orphan -> key and role it was found to have
        self._kept: dict[int, Command] = {}  # by key: released, but with leaves that are not empty

    def add(self, command: Command) -> None:
        self._by_key[command.key] = self._by_pid[command.pid] = command

    def get(self, key: int) -> Command | None:
        return self._by_key.get(key)

    def running(self) -> list[Command]:
        return list(self._by_pid.values())

    def remembered(self) -> list[Command]:
        return list(self._by_key.values())

    def kept(self) -> list[Command]:
        return list(self._kept.values())

    def end(self, pid: int) -> Command | None:
        """A process has ended: the command that it was, if it was one."""
        self._left.pop(pid, None)
        command = self._by_pid.pop(pid, None)
        if command is not None:
            command.running = False
        return command

    def forget(self, command: Command) -> None:
        """The worker wants to hear no more of an ended command."""
        del self._by_key[command.key]
        if command.children >= 0:
            os.close(command.children)
            command.children = -1
        if not command.remove_leaves():
            self._kept[command.key] = command

    def sweep(self) -> None:
        """Remove the leaves of forgotten commands that have become empty."""
        for command in self.kept():
            if command.remove_leaves():
                del self._kept[command.key]

    def left_by(self, command: Command, seen: Snapshot | None) -> list[Row]:
        """The orphans that an ended command has left, alive at this moment, for which a `Snapshot` may be at hand."""
        if command.leaf is not None:
            rows = process_table.table(pid for leaf in command.leaves() for pid in leaf.pids())
            return [row for row in rows.values() if row.parent not in rows and row.alive]
        rows = self._since(command) if seen is None else seen.rows
        for row in self._new_orphans(rows.values()):
            if row.session == command.pid or self._marked(row) == command.key:
                self._left[row.pid] = command.key, command.role(row)
        mine = [pid for pid, (key, _) in self._left.items() if key == command.key]
        return [rows[pid] for pid in mine if pid in rows and rows[pid].alive]

    def _since(self, command: Command) -> dict[int, Row]:
        """What was started since then, at least."""
        newest = process_table.last_pid()
        young = time.monotonic() - command.born < _YOUNG and newest >= command.pid
        return process_table.table(range(command.pid + 1, newest + 1) if young else None)

    def all_processes(self, directory: Directory | None) -> list[Found]:
        """Everything of the workspace that runs at this moment, but for the reaper itself."""
        seen = Snapshot()
        rows = seen.rows
        found: dict[int, Found] = {}
        for command in sorted(self.running(), key=lambda command: not command.adopted):  # kernels before their host
            for row in command.tree(self._adopter, directory).living(seen):
                found.setdefault(row.pid, (command.key, wire.ROOT if row.pid == command.pid else wire.MEMBER, row))
        for command in [*self._by_key.values(), *self._kept.values()]:
            for leaf in command.leaves():
                for pid in leaf.pids():
                    if pid in rows:
                        found.setdefault(pid, (command.key, command.role(rows[pid]), rows[pid]))
        self._find_orphans(seen, found)
        return list(found.values())

    def _find_orphans(self, seen: Snapshot, found: dict[int, Found]) -> None:
        """Add the leftovers that no leaf holds, with all that descends from them."""
        rows = seen.rows
        for row in self._new_orphans(row for row in rows.values() if row.pid not in found):
            key = self._marked(row)
            if key or self._adopter is not None:
                command = self._by_key.get(key)
                self._left[row.pid] = key, command.role(row) if command is not None else wire.DAEMON
        frontier = [(rows[pid], *known) for pid, known in self._left.items() if pid in rows]
        for row, key, role in frontier:
            if row.pid not in found and row.alive:
                found[row.pid] = key, role, row
            frontier += [(child, key, role) for child in seen.children.get(row.pid, ())]

    def _marked(self, row: Row) -> int:
        """The key of the command it came from, as far as its environment tells; else 0."""
        name, _, key = process_table.variable(row.pid, wire.MARKER).partition(b".")
        return int(key) if name == self._name and key.isdigit() else 0

    def _new_orphans(self, rows: Iterable[Row]) -> list[Row]:
        """Those that no command is and of which nothing is known yet."""
        return [
            row
            for row in rows
            if self._adopter in (None, row.parent) and row.pid not in self._by_pid and row.pid not in self._left
        ]


def entry(row: Row, command: Command | None = None) -> wire.ProcessEntry:
    """How a process is told to the worker."""
    line = process_table.command_line(row.pid)
    # A job that was forked but has not become its program yet would show the internal path of the script.
    return row.pid, row.start, _JOB if command is not None and line == command.line else line
