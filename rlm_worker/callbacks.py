"""Which methods the worker answers to cells itself, and which code each leads to. All others go to the harness.

A handler takes the agent's name, which the worker knows from the kernel's socket, and the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlm_worker.kernel import Callbacks

if TYPE_CHECKING:
    from rlm_worker.sessions import Session


def cell_callbacks(session: Session) -> Callbacks:
    """What the cells of `session` may call."""
    return Callbacks(session.harness)
