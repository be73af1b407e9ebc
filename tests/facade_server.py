"""A server for the tests of the façades, in a thread of its own: they have no Trio run to serve from."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Never

import trio

import rlm_wire

TOKEN = "facade-token"


class Add(rlm_wire.Request[int], tag="facade.add"):
    x: int
    y: int


class Wait(rlm_wire.Request[None], tag="facade.wait"):
    """Never answered; reports `waiting`, and `stopped` when it is cancelled."""


class Stubborn(rlm_wire.StreamRequest[None, Never, int], tag="facade.stubborn"):
    """Reports `waiting`, `cancelled` when it is, and `stopped` when it does stop: at the session's end."""


class Refuse(rlm_wire.Request[None], tag="facade.refuse"):
    why: str


class Count(rlm_wire.StreamRequest[int, int, Never], tag="facade.count"):
    """Sends 1, 2, ... `upto`; the result is how many were sent, also when it was stopped. `upto` 0 sends nothing."""

    upto: int
    linger: bool = False


class Collect(rlm_wire.StreamRequest[list[int], int, int], tag="facade.collect"):
    """Echoes the caller's items until there are no more; the result is all of them."""


class AskBack(rlm_wire.Request[str], tag="facade.ask_back"):
    """Calls `Name` at its caller."""


class Name(rlm_wire.Request[str], tag="facade.name"):
    pass


class ScopeOf(rlm_wire.Request[str | None], tag="facade.scope_of"):
    """The scope that the call was stamped with."""


class HangUp(rlm_wire.Request[None], tag="facade.hang_up"):
    """Ends the server."""


class FacadeServer:
    """`url`, what its handlers reported in `events`, and `close`."""

    def __init__(self) -> None:
        self.events: queue.Queue[str] = queue.Queue()
        self.url: Future[str] = Future()
        self._stop = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None

    def next_event(self) -> str:
        return self.events.get(timeout=30)

    def close(self) -> None:
        assert self._token is not None
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)

    async def run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with rlm_wire.serve("tcp://127.0.0.1:0", self._service(), TOKEN) as server:
            self.url.set_result(server.urls[0])
            await self._stop.wait()

    def _service(self) -> rlm_wire.Service:
        service = rlm_wire.Service()

        @service.handle(Add)
        def add(request: Add) -> int:
            return request.x + request.y

        @service.handle(Refuse)
        def refuse(request: Refuse) -> None:
            raise rlm_wire.CallError("failed_precondition", request.why, data={"why": request.why}, retryable=True)

        @service.handle(ScopeOf)
        def scope_of(request: ScopeOf, call: rlm_wire.IncomingCall[Never, Never]) -> str | None:
            return call.scope

        @service.handle(HangUp)
        async def hang_up(request: HangUp) -> None:
            self._stop.set()
            await trio.sleep_forever()

        @service.handle(Wait)
        async def wait(request: Wait) -> None:
            self.events.put("waiting")
            try:
                await trio.sleep_forever()
            finally:
                self.events.put("stopped")

        @service.handle(Stubborn, stoppable=True)
        async def stubborn(request: Stubborn, call: rlm_wire.IncomingCall[Never, int]) -> None:
            self.events.put("waiting")
            async for _ in call:
                pass
            self.events.put("cancelled")
            try:
                await trio.sleep_forever()
            finally:
                self.events.put("stopped")

        @service.handle(Count, stoppable=True)
        async def count(request: Count, call: rlm_wire.IncomingCall[int, Never]) -> int:
            sent = 0
            with call.stoppable():
                while sent < request.upto:
                    await call.send(sent + 1)
                    sent += 1
                if request.linger:
                    self.events.put("lingering")
                    await trio.sleep_forever()
            self.events.put("counted")
            return sent

        @service.handle(Collect)
        async def collect(request: Collect, call: rlm_wire.IncomingCall[int, int]) -> list[int]:
            items = []
            async for item in call:
                items.append(item)
                await call.send(item)
            return items

        @service.handle(AskBack)
        async def ask_back(request: AskBack, call: rlm_wire.IncomingCall[Never, Never]) -> str:
            return "you are " + await call.peer.call(Name())

        return service


@contextlib.contextmanager
def facade_server() -> Iterator[FacadeServer]:
    server = FacadeServer()
    thread = threading.Thread(target=trio.run, args=[server.run], name="facade server")
    thread.start()
    try:
        server.url.result(timeout=30)
        yield server
    finally:
        server.close()
        thread.join()
