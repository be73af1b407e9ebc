"""A workspace that was lost, as one thing to know and to raise: why, and what had been asked of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

import rlm_wire
from rlm_wire.broker.groups import one_error
from rlm_wire.broker.info import LostCall
from rlm_wire.errors import Fate, SessionLost
from rlm_wire.methods.events import FollowEvents
from rlm_wire.methods.ledger import ReplicateLedger

_ALWAYS_OPEN: Final = {FollowEvents.method, ReplicateLedger.method}
"""Calls that carry what the harness follows, and no work of an agent's."""

_GIVEN_UP: Final = "the connection was given up here"

_FATES: Final[list[Fate]] = ["executed", "maybe_executed", "not_sent"]


class WorkspaceLost(SessionLost):
    """The worker is gone for good, and with it the workspace: a fault of the infrastructure, never the agent's.

    `reason` says what happened; `calls` are the tool calls and the like that were open then, each with its method and
    its fate. `fate` is the one of them that has come furthest, `not_sent` if none was open.
    """

    def __init__(self, reason: str, calls: Sequence[LostCall] = ()) -> None:
        work = [call for call in calls if call.method not in _ALWAYS_OPEN]
        fates: list[Fate] = ["not_sent", *(call.fate for call in work)]
        open_calls = ", ".join(f"{call.method} ({call.fate})" for call in work) or "none"
        super().__init__(
            f"the workspace was lost, which is no fault of the agent's: {reason}; open calls: {open_calls}. See whether"
            " its worker still runs (`rlm-wire ping URL`), and run the task again from a workspace in a known state",
            fate=min(fates, key=_FATES.index),
        )
        self.reason = reason
        self.calls = work


class WorkspaceAbandoned(SessionLost):
    """The workspace was given up here, as somebody wants to leave at once: that is no loss, but a cancellation."""

    def __init__(self) -> None:
        super().__init__("the workspace was given up here", fate="maybe_executed")


def abandon(peer: rlm_wire.Peer) -> None:
    """Give the worker behind `peer` up, and with it every open call."""
    peer.lose(SessionLost(_GIVEN_UP))


def loss_of(peer: rlm_wire.Peer) -> WorkspaceLost | None:
    """What became of the worker behind `peer`, if it was lost, and not given up."""
    if peer.loss is None or peer.loss.reason == _GIVEN_UP:
        return None
    return WorkspaceLost(peer.loss.reason, peer.loss.calls)


def _end_of(peer: rlm_wire.Peer) -> SessionLost | None:
    return WorkspaceAbandoned() if peer.loss is not None and peer.loss.reason == _GIVEN_UP else loss_of(peer)


@asynccontextmanager
async def held(peer: rlm_wire.Peer) -> AsyncIterator[None]:
    """While the body runs: as soon as the worker behind `peer` is lost, cancel the body and raise WorkspaceLost.

    A body that waits for something else, a model say, would else find out only with its next call. A body that then
    raises SessionLost itself raises WorkspaceLost, too. WorkspaceAbandoned instead if it was given up here.
    """
    complete = False
    try:
        with trio.CancelScope() as scope, one_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when_closed, peer, scope)
                yield
                complete = True  # and what it has done stands, whatever is lost in this moment
                nursery.cancel_scope.cancel("the body has ended")
    except SessionLost as error:
        raise _end_of(peer) or error from None
    if not complete:
        raise _end_of(peer) or SessionLost("the session was closed")


async def _cancel_when_closed(peer: rlm_wire.Peer, scope: trio.CancelScope) -> None:
    await peer.wait_closed()
    scope.cancel("the workspace is lost")
