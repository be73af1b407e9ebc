"""The client's end of `stdio:`: a child process as a byte stream, its stderr, and how it is ended."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import trio

from rlm_wire.errors import LaunchError, TransportError
from rlm_wire.transports.base import Buffer
from rlm_wire.transports.descriptors import DescriptorStream, above_standard

PIPE_CAPACITY: Final = 1_048_576
"""Asked of the kernel for each pipe: more than the default 64 KiB saves a switch between the processes each time.
It is the most an unprivileged process may have; where even that is too much, the default stays."""

STDERR_TAIL: Final = 65_536
"""Bytes of stderr kept for error messages. The rest is read too, or the child would block on a full pipe."""

EVIDENCE_GRACE: Final = 0.5
"""Seconds to wait, after the child has closed its stdout, for its exit status and the end of its stderr."""

EXIT_GRACE: Final = 2.0
"""Seconds for the child to end after its stdin was closed, again after SIGTERM, and again after SIGKILL."""

PASSED_AT_ONCE: Final = select.PIPE_BUF
"""What a pipe that polls as writable takes without blocking."""

_CAN_WAIT_WITHOUT_REAPING: Final = hasattr(os, "pidfd_open")


class ChildStream(DescriptorStream):
    """Owns the child process `process`; a task must run `watch()` for as long as the stream is used."""

    skips_banner = True

    def __init__(self, process: trio.Process, pipes: _Pipes, description: str, *, echo_stderr: bool) -> None:
        super().__init__(pipes.ours_out, pipes.ours_in, description, private=True)
        self._process = process
        self._stderr = trio.lowlevel.FdStream(pipes.ours_err)
        self._tail = bytearray()
        self._echo_stderr = echo_stderr
        self._stderr_ended = trio.Event()

    @property
    def exit_code(self) -> int | None:
        """The child's exit status, negative for the signal that killed it, None while it runs. Exact after the end of
        the stream, which is reported only when the child has exited or has not done so for a moment."""
        if not _CAN_WAIT_WITHOUT_REAPING:
            return self._process.returncode
        try:
            seen = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # reaped by now
            return self._process.returncode
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status

    @property
    def stderr(self) -> str:
        """The last 64 KiB of what the child wrote to its stderr."""
        return self._tail.decode("utf-8", "replace")

    def diagnose(self) -> str:
        code = self.exit_code
        if code is None:
            status = "the command is still running"
        elif code < 0:
            status = f"the command was killed by signal {-code} ({signal.strsignal(-code)})"
        else:
            status = f"the command ended with exit status {code}"
        return f"{status}; its stderr: {self.stderr.strip()}" if self._tail else f"{status}; its stderr is empty"

    async def receive_into(self, buffer: memoryview) -> int:
        size = await super().receive_into(buffer)
        if not size:
            await self._gather_evidence()
        return size

    async def send(self, data: Sequence[Buffer]) -> None:
        try:
            await super().send(data)
        except TransportError:
            await self._gather_evidence()
            raise

    async def _gather_evidence(self) -> None:
        """The child has closed its end: `diagnose` should know its exit status and last words."""
        with trio.move_on_after(EVIDENCE_GRACE):
            await self._exited()
            await self._stderr_ended.wait()

    async def watch(self) -> None:
        """Read the child's stderr until all its holders have closed it."""
        try:
            async for chunk in self._stderr:
                self._tail += chunk
                del self._tail[:-STDERR_TAIL]
                if self._echo_stderr:
                    _echo(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._stderr_ended.set()

    async def aclose(self) -> None:
        """Close stdin → wait → SIGTERM → wait → SIGKILL, each wait bounded, and reap the child.

        Cancellation: goes on with SIGKILL at once.
        """
        if self.closed:
            await trio.lowlevel.checkpoint()
            return
        self.closed = True  # from here on only this task uses the descriptors
        trio.lowlevel.notify_closing(self._receiving)
        self.close_sending()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._discard_output)
                await self._ask_to_end()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._kill_group()
                self.close()
                await self._stderr.aclose()

    async def _discard_output(self) -> None:
        """A child that flushes its output before it exits must not wait for a reader that has left."""
        discarded = bytearray(65536)
        size = 1
        while size:
            await trio.lowlevel.wait_readable(self._receiving)
            with suppress(BlockingIOError):
                size = os.readv(self._receiving, [discarded])

    async def _ask_to_end(self) -> None:
        for last_resort in (signal.SIGTERM, None):
            with trio.move_on_after(EXIT_GRACE):
                await self._exited()
                return
            if last_resort is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, last_resort)

    async def _kill_group(self) -> None:
        """End whatever is left in the child's process group, then reap the child.

        In this order: an unreaped child keeps its number, so that no stranger's group can have it.
        """
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with trio.move_on_after(EXIT_GRACE):
            await self._process.wait()

    async def _exited(self) -> None:
        """Wait for the child's exit without reaping it."""
        if not _CAN_WAIT_WITHOUT_REAPING:
            await self._process.wait()
        elif self.exit_code is None:
            descriptor = above_standard(os.pidfd_open(self._process.pid))
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)


class _Pipes:
    """Three pipes to a child. All descriptors are close-on-exec and none is a standard one."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        try:
            self.theirs_in, self.ours_in = self._pipe(PIPE_CAPACITY)
            self.ours_out, self.theirs_out = self._pipe(PIPE_CAPACITY)
            self.ours_err, self.theirs_err = self._pipe(None)
        except BaseException:
            self.close()
            raise

    def _pipe(self, capacity: int | None) -> tuple[int, int]:
        ends = []
        for descriptor in os.pipe():
            ends.append(above_standard(descriptor))
            self._open.add(ends[-1])
        if capacity and hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):
                fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, capacity)
        return ends[0], ends[1]

    def close_theirs(self) -> None:
        for descriptor in (self.theirs_in, self.theirs_out, self.theirs_err):
            self._open.remove(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Close those that nobody has taken over."""
        while self._open:
            os.close(self._open.pop())


async def start_child(
    argv: Sequence[str], description: str, *, environment: Mapping[str, str], echo_stderr: bool, cwd: str | None = None
) -> ChildStream:
    """Start `argv` in a session of its own, with pipes as its standard streams, in the directory `cwd` or in ours.

    Raises `LaunchError` if it cannot be started. Cancellation: waits for the child to have started, which takes a
    moment, and ends it.
    """
    try:
        pipes = _Pipes()
    except OSError as error:
        raise LaunchError(f"cannot start {description}: {error.strerror}") from error
    try:
        process = await trio.lowlevel.open_process(
            list(argv),
            stdin=pipes.theirs_in,
            stdout=pipes.theirs_out,
            stderr=pipes.theirs_err,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        pipes.close()
        what = cwd if cwd is not None and getattr(error, "filename", None) == cwd else argv[0]
        missing = isinstance(error, FileNotFoundError) and what == argv[0]
        reason = "command not found" if missing else getattr(error, "strerror", error)
        raise LaunchError(f"cannot start {description}: {reason}: {what}") from error
    except BaseException:
        pipes.close()
        raise
    pipes.close_theirs()
    return ChildStream(process, pipes, description, echo_stderr=echo_stderr)


def _echo(chunk: bytes | bytearray) -> None:
    """Pass on what our own stderr takes without blocking; a stalled terminal must not stall the wire."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    for start in range(0, len(chunk), PASSED_AT_ONCE):
        if not any(events & select.POLLOUT for _, events in poll.poll(0)):
            return
        with suppress(OSError):
            os.write(2, chunk[start : start + PASSED_AT_ONCE])
