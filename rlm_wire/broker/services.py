"""A Service: which methods one side answers, and with what. No I/O; `incoming.py` runs the handlers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rlm_wire.methods.base import Request, RequestTypes, request_types

if TYPE_CHECKING:
    from rlm_wire.broker.peer import Peer

Result = TypeVar("Result")
Handler = TypeVar("Handler", bound=Callable[..., Any])
Rest = Callable[[str, msgspec.Raw, Any], Awaitable[msgspec.Raw]]
Lifespan = Callable[["Peer"], AbstractAsyncContextManager[Any]]


class Registration(msgspec.Struct, frozen=True):
    """One handler and what is known of it: called with the request, and with the IncomingCall if it takes two."""

    method: str
    request: Any
    types: RequestTypes
    function: Callable[..., Any]
    takes_call: bool
    is_async: bool
    stoppable: bool


@asynccontextmanager
async def _no_lifespan(peer: Peer) -> AsyncIterator[None]:
    yield None


class Service:
    """The methods that one side answers; give it to `connect` or `serve`.

    `lifespan(peer)` is an async context manager around each session: what it yields is `call.state` in handlers, and
    it is left after the session's handlers have ended.
    """

    def __init__(self, lifespan: Lifespan | None = None) -> None:
        self.lifespan: Lifespan = lifespan or _no_lifespan
        self._handlers: dict[str, Registration] = {}
        self._rest: Rest | None = None

    def handle(self, request: type[Request[Result]], *, stoppable: bool = False) -> Callable[[Handler], Handler]:
        """Decorator: the function answers `request`. It takes the request and, if it likes, the IncomingCall.

        A plain function runs at once in the reader and must neither block nor take long. An async function runs as a
        task of its own in a cancel scope with the caller's deadline. `stoppable`: a Cancel from the caller, or its
        deadline, does not cancel the handler, only its `call.stoppable()` blocks, so that it can still return what it
        has.
        """
        types = request_types(request)
        if request.method in self._handlers:
            raise ValueError(f"{request.method} has a handler already")

        def register(function: Handler) -> Handler:
            parameters = len(inspect.signature(function).parameters)
            if parameters not in (1, 2):
                raise TypeError(f"the handler of {request.method} must take the request, and at most the call")
            is_async = inspect.iscoroutinefunction(function)
            if stoppable and not is_async:
                raise TypeError(f"the handler of {request.method} must be async to be stoppable")
            self._handlers[request.method] = Registration(
                request.method, request, types, function, parameters == 2, is_async, stoppable
            )
            return function

        return register

    def handle_rest(self, function: Rest) -> Rest:
        """Decorator: the async function answers every method without a handler of its own; see `relay` for its use.

        It takes the method's name, the params and the IncomingCall, and returns the result; params and result are
        msgspec.Raw, in the codec of the call's peer.
        """
        self._rest = function
        return function

    def find(self, method: str) -> Registration | None:
        registration = self._handlers.get(method)
        if registration is None and self._rest is not None:
            answer = functools.partial(self._rest, method)
            registration = Registration(method, msgspec.Raw, RequestTypes(msgspec.Raw), answer, True, True, False)
        return registration

    @property
    def requests(self) -> list[type[Request[Any]]]:
        """The request classes that have a handler, by method name."""
        return [registration.request for _, registration in sorted(self._handlers.items())]

    @property
    def features(self) -> list[str]:
        """What a peer is told this side can do: the first part of each method's name."""
        return sorted({method.partition(".")[0] for method in self._handlers})
