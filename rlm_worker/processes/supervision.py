"""The worker's side of the reaper: start processes, wait for them, end their trees. No pipes and no output here."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError, Code
from rlm_worker.processes import wire
from rlm_worker.processes.descriptors import memory_file

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL: enough to flush and to remove a lock file, short enough to wait for."""

KILL_WAIT = 5.0
"""Seconds for killed processes to disappear. One that sleeps uninterruptibly (a dead network disk) may stay longer."""

T = TypeVar("T")

_REPLY_WAIT = 1.0
_WHAT_REMAINS = 0

_PACKAGE_ROOT = str(Path(__file__).parents[2])
_RUN = f"import sys; sys.path.append({_PACKAGE_ROOT!r}); from rlm_worker.processes.reaper import main; main()"

_CODES: dict[int, Code] = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.E2BIG: "resource_exhausted",
    errno.EMFILE: "resource_exhausted",
    errno.ENFILE: "resource_exhausted",
    errno.ENOMEM: "resource_exhausted",
    errno.EAGAIN: "resource_exhausted",
}
_RETRYABLE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


class Survivor(NamedTuple):
    """A process that runs on after its command: `start_time` in clock ticks since boot, `command` as people read it."""

    pid: int
    start_time: int
    command: str

    def __str__(self) -> str:
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_time / os.sysconf("SC_CLK_TCK")
        started = datetime.fromtimestamp(time.time() - age, UTC)
        return f"pid {self.pid}, started {started:%Y-%m-%d %H:%M:%S} UTC: {self.command}"


class DirectoryError(CallError):
    """The working directory cannot be entered. Told apart from the other reasons, as callers may have another one."""


class Process:
    """A process under the reaper: its own session and process group, `pid` being the number of both.

    Whoever got it from `Reaper.spawn` must see to its end (`wait` or `kill_tree`), and then call `release`.
    """

    def __init__(self, reaper: Reaper, key: int, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.left: list[Survivor] = []
        """What it has left running; known once `wait` or `kill_tree` has returned."""
        self._reaper = reaper
        self._key = key
        self._ended = trio.Event()

    async def wait(self) -> int:
        """Return its return code (negative: the signal that killed it) once it has ended.

        Raises CallError("unavailable") if the reaper was killed, and this process is lost from sight.
        Cancellation: nothing happens to the process; wait again.
        """
        await self._ended.wait()
        if self.returncode is None:
            raise _reaper_lost()
        return self.returncode

    def signal_group(self, number: int) -> None:
        """Send a signal to its process group; nothing happens once it has ended."""
        if self.returncode is None:
            self._reaper.post(wire.SIGNAL, self._key, wire.NUMBER.pack(number))

    async def kill_tree(self, *, grace: float = GRACE) -> list[Survivor]:
        """End everything that descends from it, as `Reaper.kill_tree`, and return what still runs (`left`, too)."""
        left = await self._reaper.end_tree(self._key, 0, 0, grace)
        with trio.CancelScope(shield=True), trio.move_on_after(KILL_WAIT):
            await self._ended.wait()
        self.left = left
        return left

    def end(self, returncode: int, left: list[Survivor]) -> None:
        """For the reaper's handle: it has ended."""
        self.returncode = returncode
        self.left = left
        self._ended.set()

    def lose(self) -> None:
        """For the reaper's handle: nobody will ever tell how it ended."""
        self._ended.set()

    def release(self) -> None:
        """Its output is not read any more: the reaper throws away what background jobs still write to it."""
        self._reaper.post(wire.RELEASE, self._key)


class Reaper:
    """The reaper process, seen from the worker. Made by `open_reaper`."""

    def __init__(self, connection: socket.socket, nursery: trio.Nursery) -> None:
        self._socket = connection
        self._nursery = nursery
        self._lost = False
        self._last_key = 0
        self._starting: dict[int, _Answer[Process | tuple[int, int]]] = {}
        self._processes: dict[int, Process] = {}
        self._stopping: dict[int, _Answer[list[Survivor]]] = {}

    async def spawn(
        self,
        argv: Sequence[str | bytes],
        *,
        cwd: str,
        env: Mapping[str, str],
        fds: Mapping[int, int],
        output: int | None = None,
        script: int | None = None,
    ) -> Process:
        """Start `argv[0]` (a path) in a session of its own.

        `fds` maps the child's descriptor numbers to ours; of 0, 1 and 2, those not named are /dev/null, everything
        else is closed. All signals have their defaults. `output` is the read end of a pipe that the child writes to:
        the reaper holds it too, so that nobody dies of a broken pipe when the worker stops reading or is gone. `script`
        is a file descriptor that the process finds as the path added to its arguments. The caller keeps its
        descriptors. Nothing about size is checked here: arguments and environment may have megabytes.

        Raises DirectoryError if `cwd` cannot be entered, else CallError: `not_found`, `permission_denied`,
        `resource_exhausted` (too many processes or descriptors; arguments too long), `failed_precondition` (no
        program), `invalid_argument` (a NUL), `unavailable` (the reaper was killed).
        Cancellation: before the request is sent, nothing was started; after that it is not noticed here (it is a matter
        of a millisecond): the process is returned.
        """
        key = self._next_key()
        variables = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
        variables[wire.MARKER] = b"%d" % key
        flags = (wire.OUTPUT if output is not None else 0) | (wire.SCRIPT if script is not None else 0)
        strings = (os.fsencode(cwd), [os.fsencode(argument) for argument in argv], variables)
        sources = [*fds.values(), *(descriptor for descriptor in (output, script) if descriptor is not None)]
        try:
            body = wire.spawn_body(list(fds), flags, *strings)
        except ValueError as error:
            raise CallError("invalid_argument", str(error)) from None
        answer = self._starting[key] = _Answer[Process | tuple[int, int]]()
        try:
            if len(body) + wire.HEADER.size <= wire.PACKET_LIMIT:
                await self._send(wire.SPAWN, key, body, sources)
            else:
                body = wire.spawn_body(list(fds), flags | wire.BODY_APART, *strings)
                with memory_file("request", body) as apart:
                    await self._send(wire.SPAWN, key, b"", [apart, *sources])
            return await self._started(answer, cwd, argv[0])
        finally:
            del self._starting[key]

    async def _started(self, answer: _Answer[Process | tuple[int, int]], cwd: str, program: str | bytes) -> Process:
        started = await answer.wait(shield=True)
        if isinstance(started, Process):
            return started
        raise _spawn_error(*started, cwd=cwd, program=os.fsdecode(program))

    async def kill_tree(self, pid: int, start_time: int, *, grace: float = GRACE) -> list[Survivor]:
        """End everything that descends from a process under this reaper: SIGTERM, `grace` seconds, SIGKILL.

        `start_time` is field 22 of `/proc/PID/stat`. The tree is frozen while it is signalled, so that nothing escapes
        by forking. Returns what still runs: what had left the tree for a session of its own before, and what could not
        be killed within `KILL_WAIT`.
        Cancellation: waits all the same; bounded by `grace` + `KILL_WAIT`.
        """
        return await self.end_tree(self._next_key(), pid, start_time, grace)

    async def end_tree(self, key: int, pid: int, start_time: int, grace: float) -> list[Survivor]:
        """As `kill_tree`; pid 0 stands for the process that `key` was spawned as."""
        answer = self._stopping.setdefault(key, _Answer[list[Survivor]]())
        stages = ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_WAIT), (_WHAT_REMAINS, _REPLY_WAIT))
        try:
            with trio.CancelScope(shield=True):
                for number, patience in stages[grace <= 0 :]:
                    with trio.move_on_after(patience):
                        await self._send(wire.STOP, key, wire.TARGET.pack(number, pid, start_time))
                        return await answer.wait()
            raise _reaper_lost()
        finally:
            self._stopping.pop(key, None)

    def post(self, kind: int, key: int, body: bytes = b"") -> None:
        """Send a request that has no answer: at once if the socket has room, which it has unless the reaper hangs."""
        try:
            self._socket.send(wire.HEADER.pack(kind, key) + body)
        except BlockingIOError:
            self._nursery.start_soon(self._send, kind, key, body)
        except OSError:
            return  # the reaper is gone, `receive` tells everybody

    def _next_key(self) -> int:
        self._last_key += 1
        return self._last_key

    async def _send(self, kind: int, key: int, body: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        if self._lost:
            raise _reaper_lost()
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
        while True:
            try:
                # One packet is taken as a whole or not at all, so that a cancelled send tears nothing.
                self._socket.sendmsg([wire.HEADER.pack(kind, key), body], ancillary if descriptors else [])
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except ConnectionError:
                raise _reaper_lost() from None
            else:
                return

    async def receive(self) -> None:
        """Take the reaper's replies until it is gone: one task, for as long as the reaper is used."""
        with trio.CancelScope(shield=True):  # who waits for a process in a cancelled scope still needs the replies
            while packet := await self._receive_packet():
                kind, key = wire.HEADER.unpack_from(packet)
                self._take(kind, key, packet[wire.HEADER.size :])
        self._lost = True
        for starting in self._starting.values():
            starting.fail()
        for stopping in self._stopping.values():
            stopping.fail()
        for process in self._processes.values():
            process.lose()

    async def _receive_packet(self) -> bytes:
        while True:
            try:
                return self._socket.recv(wire.PACKET_LIMIT)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except ConnectionError:
                return b""

    def _take(self, kind: int, key: int, body: bytes) -> None:
        if kind == wire.SPAWNED:
            process = self._processes[key] = Process(self, key, *wire.NUMBER.unpack(body))
            self._starting[key].set(process)
        elif kind == wire.FAILED:
            number, stage = wire.FAILURE.unpack(body)
            self._starting[key].set((number, stage))
        elif kind == wire.EXITED:
            (returncode,) = wire.NUMBER.unpack_from(body)
            self._processes.pop(key).end(returncode, _survivors(body[wire.NUMBER.size :]))
        elif key in self._stopping:  # else the answer came after its waiter had given up
            self._stopping[key].set(_survivors(body))


class _Answer(Generic[T]):
    """One reply that one task waits for."""

    def __init__(self) -> None:
        self._arrived = trio.Event()
        self._value: T | None = None

    def set(self, value: T) -> None:
        self._value = value
        self._arrived.set()

    def fail(self) -> None:
        self._arrived.set()

    async def wait(self, *, shield: bool = False) -> T:
        with trio.CancelScope(shield=shield):
            await self._arrived.wait()
        if self._value is None:
            raise _reaper_lost()
        return self._value


@asynccontextmanager
async def open_reaper() -> AsyncIterator[Reaper]:
    """Start the reaper and give the handle to it; on leaving, everything it still runs is killed, then it is gone too.

    A small process stays behind only for background jobs that outlive the worker and hold an output pipe.
    Cancellation: as leaving; waits until what was running is gone, bounded by the reaper's own limit.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            command = [sys.executable, "-I", "-S", "-c", _RUN, str(theirs.fileno())]
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={},
                start_new_session=True,  # whoever ends the worker's process group must not end this
            )
        ours.setblocking(False)
        with one_error():
            async with trio.open_nursery() as nursery:
                reaper = Reaper(ours, nursery)
                nursery.start_soon(reaper.receive)
                try:
                    yield reaper
                finally:
                    ours.shutdown(socket.SHUT_WR)
                    with trio.CancelScope(shield=True):
                        await process.wait()


def _survivors(listed: bytes) -> list[Survivor]:
    return [
        Survivor(pid, start, command.decode("utf-8", "replace"))
        for pid, start, command in wire.read_process_list(listed)
    ]


def _reaper_lost() -> CallError:
    return CallError("unavailable", "the process that supervises all others was killed: start a new worker")


def _spawn_error(number: int, stage: int, *, cwd: str, program: str) -> CallError:
    code = _CODES.get(number, "failed_precondition")
    reason = os.strerror(number)
    if stage == wire.CWD:
        return DirectoryError(code, f"cannot work in directory {cwd!r}: {reason}", retryable=number in _RETRYABLE)
    return CallError(code, f"cannot start {program!r}: {reason}", retryable=number in _RETRYABLE)
