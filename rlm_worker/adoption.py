"""Who has which workspace: each session of the wire comes with one of its own, and may take another's instead.

A harness that was killed leaves a session that the wire keeps for its lease, and a workspace with it. Its next process
cannot resume that session, whose secret was in memory, but it can prove whose the workspace is. The task that opened a
workspace goes on owning it, also when its own session is over, until whoever has it then gives it up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.broker.peer import Peer
from rlm_wire.errors import CallError, SessionLost
from rlm_wire.methods.sessions import AdoptedWorkspace
from rlm_worker.sessions import Session, Worker, open_session

ADOPTED = "another process of the harness has adopted the workspace"


class Seat:
    """One session of the wire, and the workspace that it works with. Made by `take_seat`."""

    def __init__(self, worker: Worker, harness: Peer, own: Session) -> None:
        self.session = own
        self._worker = worker
        self._harness = harness

    async def adopt(self, workspace: str, secret: str) -> AdoptedWorkspace:
        """Work with that workspace from now on. Whoever has it loses its session, and what runs for it is cancelled.

        Raises CallError: `not_found`, `failed_precondition`, `unavailable`. Cancellation: waits until that is done.
        """
        self.session.check_unused()
        async with self._worker.adopting:  # or two that adopt from each other would wait for each other's end
            wanted = self._worker.adoptable.get(workspace)
            if wanted is None or not wanted.is_secret(secret):
                raise CallError("not_found", "there is no such workspace any more, or it has another secret")
            former, left, self.session = wanted.harness, self.session, wanted
            if left is not wanted:
                left.give_up(self._harness)
            if former is not self._harness:
                wanted.hand_to(self._harness)
                former.lose(SessionLost(ADOPTED), farewell=ADOPTED)
                await former.handlers.end()
        return AdoptedWorkspace(wanted.info(), wanted.kept_agents(), wanted.background.events.last_number)

    async def end_kernels_when_lost(self) -> None:
        """Once the harness is gone: a cell that ignores interrupts need not be waited for. Cancellation: harmless."""
        await self._harness.wait_closed()
        if self.session.harness is self._harness:
            await self.session.end_kernels()


@asynccontextmanager
async def take_seat(worker: Worker, harness: Peer) -> AsyncIterator[Seat]:
    """A workspace for the harness at the other end, and the right to adopt another; leaving gives up the one it has.

    A workspace that was given up ends, with what it runs; that of somebody else ends in the task that opened it. If its
    own was adopted, this waits until it is given up. Cancellation: the same; whoever adopted it is cancelled as well.
    """
    async with open_session(worker, harness) as own:
        seat = Seat(worker, harness, own)
        try:
            with one_error():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(seat.end_kernels_when_lost)
                    yield seat
                    nursery.cancel_scope.cancel("the session has ended")
        finally:
            seat.session.give_up(harness)
            own.give_up(harness)
            with trio.CancelScope(shield=True):
                await own.given_up.wait()
