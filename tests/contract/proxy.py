"""A proxy between a client and a server on real sockets, which cuts connections and lets them go silent."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import trio

_RESET = struct.pack("ii", 1, 0)

Direction = Literal["to server", "to client"]
BOTH: Final[tuple[Direction, ...]] = ("to server", "to client")


class Proxy:
    """`url` leads to the server at `target`. `made`: connections so far. `held`: set when silence holds something back.

    `allowance` gives, for each connection, the bytes that it carries, both ways together, before it is cut.
    """

    def __init__(self, target: str, directory: Path, allowance: Callable[[], int] | None = None) -> None:
        self.made = 0
        self.held = trio.Event()
        self._scheme, _, self._address = target.partition(":")
        self._path = directory / "proxy"
        self._allowance = allowance
        self._scopes: set[trio.CancelScope] = set()
        self._flows = {direction: trio.Event() for direction in BOTH}
        self._cut_before: Direction | None = None
        self.url = ""
        self.speak()

    def cut(self) -> None:
        """Reset every connection there is."""
        for scope in self._scopes:
            scope.cancel()

    def cut_before_next(self, direction: Direction) -> None:
        """What is sent next in that direction is not carried: its connection is cut instead."""
        self._cut_before = direction

    def silence(self, *directions: Direction) -> None:
        """From now on nothing passes in these directions (none given: in both), and nothing breaks."""
        for direction in directions or BOTH:
            self._flows[direction] = trio.Event()

    def speak(self) -> None:
        """For connections made from now on, and those that were silenced."""
        for flow in self._flows.values():
            flow.set()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        if self._scheme == "unix":
            listening = trio.socket.socket(socket.AF_UNIX)
            await listening.bind(str(self._path))
            self.url = f"unix:{self._path}"
        else:
            listening = trio.socket.socket()
            await listening.bind(("127.0.0.1", 0))
            self.url = f"{self._scheme}://127.0.0.1:{listening.getsockname()[1]}"
        listening.listen(100)
        with listening:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    near, _ = await listening.accept()
                    self.made += 1
                    nursery.start_soon(self._join, near)

    async def _join(self, near: trio.socket.SocketType) -> None:
        with near:
            try:
                far = await self._connect()
            except OSError:
                return  # nobody there: so it looks to the client, too
            with trio.CancelScope() as scope, far:
                self._scopes.add(scope)
                left = [self._allowance() if self._allowance else None]
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._copy, near, far, "to server", left, scope)
                    nursery.start_soon(self._copy, far, near, "to client", left, scope)
            self._scopes.discard(scope)

    async def _connect(self) -> trio.socket.SocketType:
        host, _, port = self._address.removeprefix("//").rpartition(":")
        unix = self._scheme == "unix"
        far = trio.socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        try:
            await far.connect(self._address if unix else (host, int(port)))
        except OSError:
            far.close()
            raise
        return far

    async def _copy(
        self,
        source: trio.socket.SocketType,
        sink: trio.socket.SocketType,
        direction: Direction,
        left: list[int | None],
        scope: trio.CancelScope,
    ) -> None:
        try:
            while data := await source.recv(65536):
                if self._cut_before == direction:
                    self._cut_before = None
                    await self._cut(scope)
                await self._flowing(direction)
                view = memoryview(data)[: left[0]]
                if left[0] is not None:
                    left[0] -= len(view)
                while view:
                    view = view[await sink.send(view) :]
                if left[0] == 0:
                    await self._cut(scope)
            await self._flowing(direction)  # an end does not pass either where nothing does
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            await self._flowing(direction)
            scope.cancel()
        except trio.Cancelled:
            if self._scheme != "unix":
                source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            raise

    async def _cut(self, scope: trio.CancelScope) -> None:
        scope.cancel()
        await trio.lowlevel.checkpoint()

    async def _flowing(self, direction: Direction) -> None:
        while not self._flows[direction].is_set():
            self.held.set()
            await self._flows[direction].wait()


@asynccontextmanager
async def proxied(target: str, directory: Path, allowance: Callable[[], int] | None = None) -> AsyncIterator[Proxy]:
    proxy = Proxy(target, directory, allowance)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()
