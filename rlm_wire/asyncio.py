"""The client for asyncio: the same calls, awaited from an asyncio event loop.

    async with rlm_wire.asyncio.connect(url, token=token) as peer:
        total = await peer.call(Add(1, 2))
        async with peer.open(Tail("build.log")) as call:
            async for chunk in call: ...
            summary = await call.result()

One Trio thread runs underneath, from `connect` until its block is left. The handlers of a `service` are Trio code and
run in that thread. Use the rest from the event loop that called `connect`, from as many tasks as you like.

Cancelling a task that waits here does what it does under Trio: the call is cancelled at the peer, and the task waits,
whatever else it is told meanwhile, until the peer has stopped it, at most STOP_GRACE. So `asyncio.timeout()` and
`asyncio.TaskGroup` leave nothing running at the other side. What is used after the block of `connect` raises
SessionLost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def connect(
    url: str,
    service: Service | None = None,
    token: str | bytes | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    codec: str | None = None,
    patience: Patience | None = None,
    trace: Trace | None = None,
) -> AsyncIterator[Peer]:
    """Open a session with the server at `url`, in a Trio thread that ends with the block.

    Arguments and errors as for `rlm_wire.connect`. Calls that other tasks have open when the block is left fail with
    SessionLost. Cancellation: closes the stream, and waits for that.
    """
    thread = TrioThread(
        endpoints.connect(
            url, service, token, ssl_context=ssl_context, limits=limits, codec=codec, patience=patience, trace=trace
        )
    )
    thread.start()
    try:
        yield Peer(thread, await _wait(thread.entered, thread.leave))
    finally:
        thread.leave()
        await _wait(thread.left)
        thread.join()


class Peer(PeerBase):
    """The other side of a session."""

    async def call(self, request: Request[Result], *, timeout: float | None = None) -> Result:
        """Make a call and wait for its result; items of a stream request are not sent at all.

        `timeout` in seconds travels as the deadline of the handler. Raises CallError if the call failed (also
        `deadline_exceeded`), SessionLost if the session is or gets lost. Cancellation: see the module.
        """
        return await _run(self._thread, partial(self._peer.call, request, timeout=timeout))

    @asynccontextmanager
    async def open(
        self, request: StreamRequest[Result, Received, Sent], *, timeout: float | None = None
    ) -> AsyncIterator[Call[Result, Received, Sent]]:
        """Make a call with items; leaving the block cancels it if it has not ended, and waits until it has stopped.

        Raises like `call`. Cancellation: likewise.
        """
        held = Held(self._thread, self._peer.open(request, timeout=timeout))
        held.start()
        try:
            yield Call(self._thread, await _wait(held.entered, held.cancel))
        finally:
            held.leave()
            await _wait(held.future)

    async def ping(self) -> float:
        """Round trip to the peer's reader in seconds. Raises SessionLost. Cancellation: harmless."""
        return await _run(self._thread, self._peer.ping)

    async def wait_closed(self) -> None:
        """Wait until the session has ended, by a Goodbye or by loss. Cancellation: harmless."""
        await _run(self._thread, self._peer.wait_closed)


class Call(CallBase[Result, Received, Sent]):
    """A call in progress: iterate over its items, send yours, then take the result."""

    def __aiter__(self) -> AsyncIterator[Received]:
        return self

    async def __anext__(self) -> Received:
        if self._kept:
            return self._kept.popleft()
        job = Job(self._thread, self._call.__anext__)
        try:
            return await _finish(job)
        except asyncio.CancelledError:
            if job.succeeded:
                self._kept.append(job.future.result())
            raise

    async def send(self, item: Sent) -> None:
        """Send an item; waits while the peer's window is used up. CallError if it cannot be sent.

        Raises the call's error if the call ended in failure, and `trio.BrokenResourceError` if it ended otherwise.
        Cancellation: the item was probably not sent.
        """
        await _run(self._thread, partial(self._call.send, item))

    async def close_sending(self) -> None:
        """Tell the peer that no more items come. Harmless if the call has ended."""
        await _run(self._thread, self._call.close_sending)

    async def result(self) -> Result:
        """Wait for the result. Raises CallError if the call failed, SessionLost if the peer is gone.

        After `cancel()` it is what the work had until then, if its handler gives partial results, else CallError
        `cancelled`. Cancellation: only the waiting ends; the call goes on until its `async with` is left.
        """
        return await _run(self._thread, self._call.result)


async def _run(thread: TrioThread, function: Callable[[], Awaitable[T]]) -> T:
    return await _finish(Job(thread, function))


async def _finish(job: Job[T]) -> T:
    job.start()
    return await _wait(job.future, job.cancel)


async def _wait(future: Future[T], interrupt: Callable[[], object] = lambda: None) -> T:
    """What `future` holds. A cancellation calls `interrupt`, and is raised when `future` is done."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def tell(_: Future[T]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(tell)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await done.wait()
        except asyncio.CancelledError as error:
            cancelled = error
            interrupt()
    if cancelled is not None:
        raise cancelled
    return future.result()
