"""How far the reaper can contain processes on this machine: four tiers, best first. Runs in the reaper.

=============  =====================================================================================================
cgroup         a control group for each command: nothing escapes, whatever it does to sessions, parents, environment
pid-namespace  one namespace for the workspace: nothing outlives the reaper unnoticed, nothing outside is in reach
subreaper      orphans fall to the reaper: all that descends from a command is seen, also what left its session
process-group  only what has not left its session, or is still linked to its command by living parents, is seen
=============  =====================================================================================================
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from rlm_worker.processes import namespaces
from rlm_worker.processes.cgroups import Directory

CGROUP, NAMESPACE, SUBREAPER, GROUP = "cgroup", "pid-namespace", "subreaper", "process-group"
TIERS = (CGROUP, NAMESPACE, SUBREAPER, GROUP)

_PR_SET_CHILD_SUBREAPER = 36


class Containment:
    """What was taken up. `reasons` says of each better tier why it is not this one."""

    def __init__(self) -> None:
        self.tier = ""
        self.reasons: dict[str, str] = {}
        self.directory: Directory | None = None
        self.outside = -1
        """Of a PID namespace: the descriptor whose closing ends the process that waits outside."""

    @property
    def adopter(self) -> int | None:
        """The pid that orphans fall to, if it is always the same."""
        return None if self.tier == GROUP else os.getpid()


def take_up(wanted: str, leave_outside: Callable[[], None]) -> Containment:
    """Take up the tier `wanted` or, if that is empty, the best there is; `tier` stays empty if that cannot be.

    The process may be another one afterwards, and the one that called stays behind: see `namespaces.enter`.
    """
    containment = Containment()
    for tier in (wanted,) if wanted else TIERS:
        try:
            if tier == CGROUP:
                _become_subreaper()
                containment.directory = Directory()
            elif tier == NAMESPACE:
                containment.outside = namespaces.enter(leave_outside)
            elif tier == SUBREAPER:
                _become_subreaper()
        except OSError as error:
            containment.reasons[tier] = error.strerror or str(error)
        else:
            containment.tier = tier
            break
    return containment


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel has no child subreaper")
