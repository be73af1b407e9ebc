"""A session in a Trio thread of its own: what `asyncio` and `blocking` share.

Theory of operation
-------------------
`TrioThread` enters `rlm_wire.connect(...)` in its thread, says so (`entered`), waits for `leave`, and says when all has
ended (`left`). Between the two, a `Job` runs one async function in there, with the caller's context variables, and
`Held` one async context manager. Every end is a `concurrent.futures.Future`. How to wait for one is the façade's
business; when its wait is interrupted, it calls `cancel` and waits on, because only the end of a job says that its work
has stopped.

An interrupt can come between any two bytecodes of the caller. So nothing here relies on having returned: a job that
is cancelled before it was started ends, and a thread that is told to leave before it came up does nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from typing import Any, Generic, TypeVar

import trio

from rlm_wire.broker.calls import Call
from rlm_wire.broker.groups import one_error
from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.peer import CLOSED_HERE, Peer, State
from rlm_wire.errors import Fate, SessionLost

T = TypeVar("T")
Result = TypeVar("Result")
Received = TypeVar("Received")
Sent = TypeVar("Sent")


class TrioThread:
    """Holds `session` open in a thread. `start` it once; `leave` it in any case, from any thread."""

    def __init__(self, session: AbstractAsyncContextManager[Peer]) -> None:
        self.entered: Future[Peer] = Future()
        """The peer, or the exception that entering the session raised."""
        self.left: Future[None] = Future()
        """Done when the thread has nothing more to do; holds what leaving the session raised, if anything."""
        self._session = session
        self._nursery: trio.Nursery | None = None
        self._leave = trio.Event()
        self._scope = trio.CancelScope()
        self._lock = threading.Lock()  # between `leave` and the thread's coming up
        self._token: trio.lowlevel.TrioToken | None = None
        self._leaving = False
        # A daemon, so that a program which never leaves its block can end all the same.
        self._thread = threading.Thread(target=self._run, name="rlm_wire", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except BaseException:
            self.leave()
            self.left.set_result(None)  # nobody need wait: if it comes up after all, it does nothing
            raise

    def leave(self) -> None:
        """Leave the session, or cancel entering it. Returns at once: `left` says when it has happened."""
        with self._lock:
            self._leaving = True
        self.soon(self._begin_to_leave)

    def drop(self) -> None:
        """Break the session off: nothing waits for the peer any longer. Returns at once."""
        if self.entered.done() and self.entered.exception() is None:
            self.soon(self.entered.result().lose, SessionLost("the session was broken off here by an interrupt"))

    def join(self) -> None:
        """Once `left` is done: wait for the last moment of the thread."""
        if self._thread.ident is not None:
            self._thread.join()

    def soon(self, function: Callable[..., object], *args: object) -> bool:
        """Have the Trio thread call a plain function; in order. False if it is not running (any more)."""
        with suppress(trio.RunFinishedError):
            if self._token is not None:
                self._token.run_sync_soon(function, *args)
                return True
        return False

    def refuse_own_thread(self) -> None:
        """RuntimeError if the caller is the thread itself, which would wait for itself for ever."""
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("this is the session's own Trio thread: a handler makes its calls with `call.peer`")

    # --------------------------------------------------------- in the Trio thread

    def begin(self, job: Job[Any]) -> None:
        """Run `job`, unless it is too late."""
        if self._nursery is None:
            job.fail(closed_here())
        else:
            self._nursery.start_soon(job.run)

    def _begin_to_leave(self) -> None:
        self._leave.set()
        if not self.entered.done():
            self._scope.cancel("left before it was entered")

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._main)
        except BaseException as problem:  # noqa: BLE001 - it is handed to whoever waits, and this is the thread's end
            error = problem
        if not self.entered.done():
            self.entered.set_exception(error or closed_here())
            error = None
        if self.left.done():
            return
        if error is None:
            self.left.set_result(None)
        else:
            self.left.set_exception(error)

    async def _main(self) -> None:
        with self._lock:
            self._token = trio.lowlevel.current_trio_token()
            if self._leaving:
                return
        with one_error():
            async with trio.open_nursery() as nursery:
                try:
                    with self._scope:
                        async with self._session as peer:
                            self._nursery = nursery
                            self.entered.set_result(peer)
                            await self._leave.wait()
                finally:
                    self._nursery = None
                    nursery.cancel_scope.cancel("the session is closed")


class Job(Generic[T]):
    """One async function, run in the Trio thread; `future` is how it ends. Make it, then `start` it, then wait."""

    def __init__(self, thread: TrioThread, function: Callable[[], Awaitable[T]]) -> None:
        thread.refuse_own_thread()
        self.future: Future[T] = Future()
        self._thread = thread
        self._function = function
        self._scope = trio.CancelScope()
        self._begun = False

    def start(self) -> None:
        """Returns at once. Once the session is closed, the job fails: SessionLost."""
        if not self._thread.soon(copy_context().run, self._begin):
            self.fail(closed_here())

    def cancel(self) -> None:
        """Cancel the function as Trio does: `future` is done when it has ended, which may take its time."""
        if not self._thread.soon(self._cancel) and not self.future.done():
            self.fail(closed_here())

    @property
    def succeeded(self) -> bool:
        return self.future.done() and self.future.exception() is None

    # --------------------------------------------------------- in the Trio thread

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)

    def _begin(self) -> None:
        self._begun = True
        self._thread.begin(self)

    def _cancel(self) -> None:
        self._scope.cancel("cancelled by the caller")
        if not self._begun and not self.future.done():
            self.fail(closed_here())

    async def run(self) -> None:
        """Run to the end. Raises nothing but a cancellation from outside."""
        try:
            with self._scope:
                self.future.set_result(await self._function())
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the job
            self.fail(error)
        finally:
            if not self.future.done():
                self.stopped()

    def stopped(self) -> None:
        """It was cancelled: by its caller, who knows, or because the session is closed."""
        self.fail(closed_here("maybe_executed"))


class Held(Job[None], Generic[T]):
    """An async context manager, held open in the Trio thread; `entered` is what it yields, `future` that it is left."""

    def __init__(self, thread: TrioThread, manager: AbstractAsyncContextManager[T]) -> None:
        super().__init__(thread, self._hold)
        self.entered: Future[T] = Future()
        self._manager = manager
        self._leave = trio.Event()

    def leave(self) -> None:
        """Returns at once: `future` says when it has happened."""
        self._thread.soon(self._leave.set)

    def fail(self, error: BaseException) -> None:
        if self.entered.done():
            super().fail(error)
        else:
            self.entered.set_exception(error)
            self.future.set_result(None)  # nothing was entered, and whoever waits for that is told why

    def stopped(self) -> None:
        if self.entered.done():
            self.future.set_result(None)
        else:
            super().stopped()

    async def _hold(self) -> None:
        async with self._manager as value:
            self.entered.set_result(value)
            await self._leave.wait()


class PeerBase:
    """What both façades' peers know without waiting."""

    def __init__(self, thread: TrioThread, peer: Peer) -> None:
        self._thread = thread
        self._peer = peer

    def __repr__(self) -> str:
        return repr(self._peer)

    @property
    def info(self) -> PeerInfo:
        """What the handshake told of the other side, and what was agreed."""
        return self._peer.info

    @property
    def closed(self) -> bool:
        """True when the session has ended, by a Goodbye or by loss."""
        return self._peer.closed

    @property
    def state(self) -> State:
        """Whether there is a connection. Calls can be made without one: they wait for it."""
        return self._peer.state


class CallBase(Generic[Result, Received, Sent]):
    """What both façades' calls do without waiting."""

    def __init__(self, thread: TrioThread, call: Call[Result, Received, Sent]) -> None:
        self._thread = thread
        self._call = call
        self._kept: deque[Received] = deque()
        """Items that had been taken when the wait for them was interrupted: they come first."""

    def __repr__(self) -> str:
        return repr(self._call)

    def cancel(self, reason: str = "") -> None:
        """Ask the peer to stop the work; harmless if the call has ended. `result()` then tells how it ended."""

        async def cancel() -> None:
            self._call.cancel(reason)

        Job(self._thread, cancel).start()


def closed_here(fate: Fate = "not_sent") -> SessionLost:
    """For calls that are made, or still open, when the block that holds the session has been left."""
    return SessionLost(f"{CLOSED_HERE}: the `with` block of its connect() has been left", fate=fate)
