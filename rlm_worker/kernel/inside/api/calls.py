"""How an operation of `rlm` gets from a cell to the worker, from whatever kind of code it is called.

Theory of operation
-------------------
An operation is written once, as an `async def` under `@operation` that awaits `calls.request(...)`. Called where an
event loop runs in this thread (asyncio or Trio), it is an ordinary coroutine, to be awaited; called anywhere else, it
blocks and returns the result. `wait` blocks in either case. While code blocks, the kernel's Trio thread carries on.

The request is encoded by the thread that makes it, so that mistakes show there, and later changes to its values do not
matter. It travels with the scope of the cell that started the code. An interrupt or a cancelled task ends the waiting
at once, and cancels the call behind it.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

import msgspec
import trio

from rlm_wire.broker.peer import Peer
from rlm_wire.broker.scopes import current_scope
from rlm_wire.errors import CallError, Code, SessionLost
from rlm_wire.methods.base import Request, request_types
from rlm_worker.kernel.inside.record import depth_exceeds

T = TypeVar("T")
P = ParamSpec("P")

NESTING_LIMIT: Final = 60
"""Containers inside containers in a request: the wire takes 64, and the encoder recurses."""

CLOSING: Final = "this kernel is being closed"


class Error(RuntimeError):
    """An operation of `rlm` failed. `code` says how (`not_found`, `permission_denied`, ...), `data` may say more."""

    def __init__(self, code: Code, message: str, *, data: Any = None, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.data = data
        self.retryable = retryable
        """Whether the same operation may work later."""

    def __str__(self) -> str:
        return f"{self.code}: {self.args[0]}"


class Refused(Error, PermissionError):
    """An Error with the code `permission_denied`, also for those who expect a PermissionError."""


class _Thread(threading.local):
    blocking = False  # this thread drives a coroutine by `wait`


_thread = _Thread()


def operation(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Any]:
    """Decorator: an async function that awaits nothing but `Calls.request` and others of its kind.

    What it makes returns a coroutine where an event loop runs in this thread, and elsewhere blocks for the result.
    """
    function.__qualname__ = f"rlm.{function.__name__}"  # for "coroutine 'rlm.call' was never awaited"

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        coroutine = function(*args, **kwargs)
        return coroutine if _loop_runs_here() else wait(coroutine)

    return call


def wait(operation: Any) -> Any:
    """Block until an operation of `rlm` is done, in any code: `rlm.wait(rlm.shell.run("make"))`.

    For plain functions that are called from async code too, where the operation alone is a coroutine. It holds up the
    event loop of its thread. What is no coroutine, as the operation has been done already, is returned as it is.
    """
    if not isinstance(operation, Coroutine):
        return operation
    before, _thread.blocking = _thread.blocking, True
    try:
        operation.send(None)
    except StopIteration as done:
        return done.value
    finally:
        _thread.blocking = before
    operation.close()
    raise TypeError("rlm.wait() takes operations of rlm, not coroutines in general")


def _loop_runs_here() -> bool:
    if _thread.blocking:
        return False
    if trio.lowlevel.in_trio_run():
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Calls:
    """The way from this process's code to the worker. One per kernel; of use once it is attached."""

    def __init__(self) -> None:
        self.ledger_size: int | None = None
        """How much of the ledger the running cell may count on, in bytes."""
        self._peer: Peer | None = None
        self._nursery: trio.Nursery
        self._token: trio.lowlevel.TrioToken
        self._gone = "this kernel is not connected"

    def attach(self, peer: Peer, nursery: trio.Nursery) -> None:
        """Make calls at `peer`, by tasks in `nursery`; from the Trio thread."""
        self._nursery, self._token = nursery, trio.lowlevel.current_trio_token()
        self._peer = peer

    def detach(self, why: str) -> None:
        """From now on every call fails with Error("unavailable")."""
        self._peer, self._gone = None, why

    async def request(self, request: Request[T]) -> T:
        """Make a typed call; for use in operations. Raises Error. Cancellation: cancels the call at the worker."""
        result: T = await self.send(request.method, request, request_types(type(request)).result)
        return result

    async def send(self, method: str, params: Any, result_type: Any = Any) -> Any:
        """Make the call `method` with any params. Else as `request`."""
        if self._peer is None:
            raise Error("unavailable", self._gone)
        call = _Call(self._peer, method, _encoded(method, params), current_scope.get())
        try:
            call.start(self._token, self._begin)
            raw = await call
        except trio.RunFinishedError:
            raise Error("unavailable", CLOSING) from None
        finally:  # also if an interrupt strikes before the wait has begun
            call.leave()
        try:
            return msgspec.msgpack.decode(raw, type=result_type)
        except msgspec.DecodeError as error:
            raise Error("internal", f"the answer to {method} does not fit: {error}") from None

    def _begin(self, call: _Call) -> None:
        if self._peer is None:  # detached meanwhile: the nursery may be closed
            call.give_up()
        else:
            self._nursery.start_soon(call.run)


def _encoded(method: str, params: Any) -> msgspec.Raw:
    if depth_exceeds(msgspec.structs.asdict(params) if isinstance(params, msgspec.Struct) else params, NESTING_LIMIT):
        raise Error("invalid_argument", f"the arguments of {method} are nested too deeply")
    try:
        return msgspec.Raw(msgspec.msgpack.encode(params))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Error("invalid_argument", f"the arguments of {method} cannot be sent: {error}") from None


class _Call:
    """One call on its way: made and awaited in a thread of the cell's, run in the Trio thread."""

    def __init__(self, peer: Peer, method: str, params: msgspec.Raw, scope: str | None) -> None:
        self._peer = peer
        self._method = method
        self._params = params
        self._scope = scope
        self._work = trio.CancelScope()
        self._future: Future[msgspec.Raw] = Future()  # cancelled by whoever waits and leaves

    def start(self, token: trio.lowlevel.TrioToken, begin: Callable[[_Call], None]) -> None:
        def cancel_work(future: Future[msgspec.Raw]) -> None:
            if future.cancelled():
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._work.cancel)

        self._future.add_done_callback(cancel_work)
        token.run_sync_soon(begin, self)

    def __await__(self) -> Generator[Any, Any, msgspec.Raw]:
        if not _loop_runs_here():
            error = self._future.exception()
        elif trio.lowlevel.in_trio_run():
            error = yield from self._wait_in_trio().__await__()
        else:
            return (yield from asyncio.wrap_future(self._future).__await__())
        if error is not None:
            raise error
        return self._future.result()

    def leave(self) -> None:
        """Nobody waits any more: cancels the call, unless it has ended."""
        self._future.cancel()

    async def _wait_in_trio(self) -> BaseException | None:
        """In a Trio run that a cell has started."""
        done, token = trio.Event(), trio.lowlevel.current_trio_token()

        def notify(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        self._future.add_done_callback(notify)
        await done.wait()
        return self._future.exception()

    async def run(self) -> None:
        """Make the call, in the kernel's Trio thread, and settle the future in any case."""
        try:
            with self._work:
                self._settle(await self._peer.call_encoded(self._method, self._params, scope=self._scope), None)
        except CallError as error:
            kind = Refused if error.code == "permission_denied" else Error
            self._settle(None, kind(error.code, error.message, data=error.data, retryable=error.retryable))
        except SessionLost:
            pass
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Fail, if it has not ended yet."""
        self._settle(None, Error("unavailable", CLOSING))

    def _settle(self, answer: msgspec.Raw | None, error: Error | None) -> None:
        with suppress(InvalidStateError):  # settled or cancelled before
            if answer is not None:
                self._future.set_result(answer)
            else:
                self._future.set_exception(error)
