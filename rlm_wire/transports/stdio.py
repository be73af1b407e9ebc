"""`stdio:COMMAND` talks to a command that this side starts; `stdio:` alone listens on this process's stdin and stdout.

The command is split like a shell's words, and no shell is involved unless it names one:
`stdio:docker exec -i box rlm-worker serve --stdio`.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from rlm_wire.errors import LaunchError, TransportError
from rlm_wire.transports.base import ByteStream, Listener, refuse_ssl_context
from rlm_wire.transports.children import start_child
from rlm_wire.transports.descriptors import FIRST_FREE_DESCRIPTOR, DescriptorStream

NOT_INHERITED: Final = frozenset({"RLM_TOKEN"})
"""Environment variables the command does not get: a token is for this process alone."""


class StdioTransport:
    """`echo_stderr=True` passes the command's stderr on to ours, without ever waiting for it."""

    reconnects = False
    scheme = "stdio"

    def __init__(self, *, echo_stderr: bool = False) -> None:
        self._echo_stderr = echo_stderr

    @asynccontextmanager
    async def connect(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[ByteStream]:
        """Leaving closes the command's stdin, and ends it if it does not end by itself (`ChildStream.aclose`)."""
        url = f"{self.scheme}:{address}"
        refuse_ssl_context(self.scheme, ssl_context)
        argv = _split(url, address)
        environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        stream = await start_child(argv, url, environment=environment, echo_stderr=self._echo_stderr)
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.watch)
                try:
                    yield stream
                except BaseException as error:  # noqa: BLE001 - raised again below, where no group can wrap it
                    failure = error
                await stream.aclose()
                nursery.cancel_scope.cancel()
        finally:
            if failure is not None:
                raise failure

    @asynccontextmanager
    async def listen(self, address: str, *, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
        """Takes the standard streams for good: from then on stdin is empty, and what is printed goes to stderr.

        To be entered before anything else can read or print. At most once in a process.
        """
        refuse_ssl_context("stdio", ssl_context)
        if address:
            raise TransportError(f"stdio:{address}: a listener takes no command; use `stdio:` alone")
        stream = _claim_standard_streams()
        try:
            await trio.lowlevel.checkpoint()
            yield StdioListener(stream)
        finally:
            stream.close()


transport = StdioTransport()


class StdioListener(Listener):
    """Has one peer, which is there already."""

    def __init__(self, stream: DescriptorStream) -> None:
        self.urls = ["stdio:"]
        self._stream: DescriptorStream | None = stream

    async def accept(self) -> ByteStream:
        await trio.lowlevel.checkpoint()
        if self._stream is None:
            raise trio.EndOfChannel
        stream, self._stream = self._stream, None
        return stream


def _split(url: str, command: str) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise LaunchError(f"{url}: {error}") from error
    if not argv:
        raise LaunchError(f"{url} needs a command to start, such as `stdio:rlm-worker serve --stdio`")
    return argv


def _claim_standard_streams() -> DescriptorStream:
    """Move 0 and 1 to private close-on-exec descriptors, and leave harmless ones in their place."""
    # Python has no object for a stream that was closed when it started. Its number may be Trio's by now.
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise TransportError("stdio: stdin or stdout is closed; start this with both connected to the client")
    kind = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(0)):  # nothing can be waited for there
        raise TransportError("stdio: stdin is /dev/null or a file, not a client; docker and kubectl exec need -i")
    receiving = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_DESCRIPTOR)
    sending = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_DESCRIPTOR)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null if sys.__stderr__ is None else 2, 1)
    os.close(null)
    return DescriptorStream(receiving, sending, "stdio:", private=True)
