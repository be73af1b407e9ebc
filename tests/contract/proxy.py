"""A proxy between a client and a server on real sockets, which cuts connections and lets them go silent."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """`url` leads to the server at `target`. `made`: connections so far."""

    def __init__(self, target: str, directory: Path) -> None:
        self.made = 0
        self._scheme, _, self._address = target.partition(":")
        self._path = directory / "proxy"
        self._scopes: set[trio.CancelScope] = set()
        self._flows = trio.Event()
        self._flows.set()
        self.url = ""

    def cut(self) -> None:
        """Reset every connection there is."""
        for scope in self._scopes:
            scope.cancel()

    def silence(self) -> None:
        """From now on nothing passes, and nothing breaks."""
        self._flows = trio.Event()

    def speak(self) -> None:
        """For connections made from now on, and those that were silenced."""
        self._flows.set()

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
        if self._scheme == "unix":
            far = trio.socket.socket(socket.AF_UNIX)
            await far.connect(self._address)
        else:
            host, _, port = self._address.removeprefix("//").rpartition(":")
            far = trio.socket.socket()
            await far.connect((host, int(port)))
        with trio.CancelScope() as scope, near, far:
            self._scopes.add(scope)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._copy, near, far, scope)
                nursery.start_soon(self._copy, far, near, scope)
        self._scopes.discard(scope)

    async def _copy(
        self, source: trio.socket.SocketType, sink: trio.socket.SocketType, scope: trio.CancelScope
    ) -> None:
        flows = self._flows
        try:
            while data := await source.recv(65536):
                await flows.wait()
                if flows is not self._flows:
                    flows = self._flows
                    await flows.wait()
                view = memoryview(data)
                while view:
                    view = view[await sink.send(view) :]
        except OSError:
            pass
        except trio.Cancelled:
            if self._scheme != "unix":
                source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            raise
        scope.cancel()


@asynccontextmanager
async def proxied(target: str, directory: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(target, directory)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()
