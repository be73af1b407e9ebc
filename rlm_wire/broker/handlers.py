"""The calls that the peer makes: finding their handlers, and the tasks of those that need one.

Plain functions run at once, in the reader's task. The tasks of the others are in one nursery, which is ended before the
Goodbye, so that nothing of a session outlives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.broker.incoming import IncomingCall, answer, to_call_error
from rlm_wire.broker.services import Registration
from rlm_wire.broker.writer import FLOODED
from rlm_wire.errors import CallError
from rlm_wire.frames.schema import Call as CallFrame

if TYPE_CHECKING:
    from rlm_wire.broker.peer import Peer


class Handlers:
    """What runs here for `peer`. `open` are the calls that have a task, by id."""

    def __init__(self, peer: Peer) -> None:
        self.open: dict[int, IncomingCall[Any, Any]] = {}
        self._peer = peer
        self._scope = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self._ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Hold the tasks until `cancel`.

        Shielded: they outlive the cancellation of the session's user, until its own calls have been seen to.
        """
        try:
            with self._scope, one_error():
                async with trio.open_nursery() as self._nursery:
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self._ended.set()

    def cancel(self, reason: str) -> None:
        self._scope.cancel(reason)

    async def end(self) -> None:
        """Cancel them and wait, shielded, until they have ended."""
        self.cancel("the session is ending")
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    def receive_call(self, frame: CallFrame) -> None:
        peer = self._peer
        registration = peer.service.find(frame.method)
        if registration is None:
            name = frame.method[:200]
            peer.fail(frame.id, CallError("unimplemented", f"there is no method {name!r} here"))
            return
        if self._scope.cancel_called:
            peer.fail(frame.id, CallError("unavailable", "the session is closing", retryable=True))
            return
        if peer.queued > FLOODED:
            busy = f"{peer.queued} bytes wait for this peer to read them"
            peer.fail(frame.id, CallError("resource_exhausted", busy, retryable=True))
            return
        try:
            request = peer.decode(frame.params, registration.request, f"params of {frame.method}")
        except CallError as error:
            peer.fail(frame.id, error)
            return
        if registration.is_async:
            call: IncomingCall[Any, Any] = IncomingCall(peer, frame, registration)
            self.open[frame.id] = call
            assert self._nursery is not None
            self._nursery.start_soon(call.run, request, name=frame.method)
            return
        arguments = (request, IncomingCall(peer, frame, registration)) if registration.takes_call else (request,)
        call_id = frame.id
        del frame  # its bytes may be many, and the answer needs room
        self._run_now(call_id, registration, arguments)

    def _run_now(self, call_id: int, registration: Registration, arguments: tuple[Any, ...]) -> None:
        try:
            result = registration.function(*arguments)
        except Exception as error:  # noqa: BLE001 - the boundary: whatever a handler raises becomes an answer
            self._peer.fail(call_id, to_call_error(error, registration.method))
        else:
            answer(self._peer, call_id, registration, result)
