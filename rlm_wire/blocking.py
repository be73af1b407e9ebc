"""The client for plain code: the same calls, each of which blocks its thread.

    with rlm_wire.blocking.connect(url, token=token) as peer:
        total = peer.call(Add(1, 2))
        with peer.open(Tail("build.log")) as call:
            for chunk in call: ...
            summary = call.result()

One Trio thread runs underneath, from `connect` until its block is left. The handlers of a `service` run in that thread,
as they would under Trio. Everything may be used from several threads at once, except from that one.

An interrupt (Ctrl-C: KeyboardInterrupt, or whatever a signal handler raises) during a call cancels it at the peer,
waits until the peer has stopped it, at most STOP_GRACE, and is then raised. An interrupt while that is being waited
for breaks the session off. What is used after the block of `connect` raises SessionLost.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rlm_wire import endpoints
from rlm_wire.trio_thread import CallBase, Held, Job, PeerBase, TrioThread

if TYPE_CHECKING:
    import ssl

    from rlm_wire.broker.patience import Patience
    from rlm_wire.broker.services import Service
    from rlm_wire.frames.limits import Limits
    from rlm_wire.methods.base import Request, StreamRequest
    from rlm_wire.trace import Trace

__all__ = ["Call", "Peer", "connect"]

T = TypeVar("T")
Result = TypeVar("Result")
Received = TypeVar("Received")
Sent = TypeVar("Sent")


@contextmanager
def connect(
    url: str,
    service: Service | None = None,
    token: str | bytes | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    codec: str | None = None,
    patience: Patience | None = None,
    trace: Trace | None = None,
) -> Iterator[Peer]:
    """Open a session with the server at `url`, in a Trio thread that ends with the block.

    Arguments and errors as for `rlm_wire.connect`. Calls that other threads have open when the block is left fail with
    SessionLost.
    """
    thread = TrioThread(
        endpoints.connect(
            url, service, token, ssl_context=ssl_context, limits=limits, codec=codec, patience=patience, trace=trace
        )
    )
    try:
        thread.start()
        yield Peer(thread, _wait(thread.entered, lambda: None, thread.leave))
    finally:
        if not sys.is_finalizing():  # else the block was never left, and the thread stands still already
            _wait(thread.left, thread.leave, thread.drop)
            thread.join()


class Peer(PeerBase):
    """The other side of a session. Use it from as many threads as you like."""

    def call(self, request: Request[Result], *, timeout: float | None = None) -> Result:
        """Make a call and wait for its result; items of a stream request are not sent at all.

        `timeout` in seconds travels as the deadline of the handler. Raises CallError if the call failed (also
        `deadline_exceeded`), SessionLost if the session is or gets lost. Interrupts: see the module.
        """
        return _run(self._thread, partial(self._peer.call, request, timeout=timeout))

    @contextmanager
    def open(
        self, request: StreamRequest[Result, Received, Sent], *, timeout: float | None = None
    ) -> Iterator[Call[Result, Received, Sent]]:
        """Make a call with items; leaving the block cancels it if it has not ended, and waits until it has stopped.

        Raises like `call`.
        """
        held = Held(self._thread, self._peer.open(request, timeout=timeout))
        try:
            yield Call(self._thread, _wait(held.entered, held.start, held.cancel, self._thread.drop))
        finally:
            _wait(held.future, held.leave, self._thread.drop)

    def ping(self) -> float:
        """Round trip to the peer's reader in seconds. Raises SessionLost."""
        return _run(self._thread, self._peer.ping)

    def wait_closed(self) -> None:
        """Wait until the session has ended, by a Goodbye or by loss."""
        _run(self._thread, self._peer.wait_closed)


class Call(CallBase[Result, Received, Sent]):
    """A call in progress: iterate over its items, send yours, then take the result."""

    def __iter__(self) -> Iterator[Received]:
        return self

    def __next__(self) -> Received:
        with suppress(IndexError):
            return self._kept.popleft()
        job = Job(self._thread, self._call.__anext__)
        try:
            return _finish(self._thread, job)
        except StopAsyncIteration:
            raise StopIteration from None
        except BaseException:
            if job.succeeded:
                self._kept.append(job.future.result())
            raise

    def send(self, item: Sent) -> None:
        """Send an item; waits while the peer's window is used up. CallError if it cannot be sent.

        Raises the call's error if the call ended in failure, and `trio.BrokenResourceError` if it ended otherwise.
        """
        _run(self._thread, partial(self._call.send, item))

    def close_sending(self) -> None:
        """Tell the peer that no more items come. Harmless if the call has ended."""
        _run(self._thread, self._call.close_sending)

    def result(self) -> Result:
        """Wait for the result. Raises CallError if the call failed, SessionLost if the peer is gone.

        After `cancel()` it is what the work had until then, if its handler gives partial results, else CallError
        `cancelled`. An interrupt ends only the waiting; the call goes on until its block is left.
        """
        return _run(self._thread, self._call.result)


def _run(thread: TrioThread, function: Callable[[], Awaitable[T]]) -> T:
    return _finish(thread, Job(thread, function))


def _finish(thread: TrioThread, job: Job[T]) -> T:
    return _wait(job.future, job.start, job.cancel, thread.drop)


def _wait(future: Future[T], *steps: Callable[[], object]) -> T:
    """Take the first step and wait for `future`; each interrupt takes the next step, and is raised at the end."""
    interrupt: BaseException | None = None
    remaining = iter(steps)
    while True:
        try:
            next(remaining, future.done)()
            future.exception()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            interrupt = error
        else:
            break
    if interrupt is not None:
        raise interrupt
    return future.result()
