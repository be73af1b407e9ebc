"""One tree that is being ended, as the reaper keeps it in mind."""

from __future__ import annotations

from rlm_worker.processes.commands import Command
from rlm_worker.processes.process_table import Row
from rlm_worker.processes.tree import Tree


class Stop:
    """The tree, the last signal it got, and what wakes us when it changes (-1: nothing but SIGCHLD)."""

    __slots__ = ("command", "members", "pidfd", "signal", "tree", "watched")

    def __init__(self, command: Command, tree: Tree) -> None:
        self.command = command
        self.tree = tree
        self.signal = 0
        self.watched = -1
        self.pidfd = -1
        self.members: list[Row] = []
        """What was alive when it was checked last."""

    def has_grown(self) -> bool:
        """Whether something is there that SIGKILL has not been sent to."""
        return not self.tree.killed.issuperset(row.identity for row in self.members)
