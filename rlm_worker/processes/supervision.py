"""The worker's side of the reaper: start processes, wait for them, end their trees. No pipes and no output here."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

import trio

from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError, Code
from rlm_worker.processes import wire
from rlm_worker.processes.descriptors import memory_file
from rlm_worker.processes.handles import (
    KILL_WAIT,
    ContainmentError,
    DirectoryError,
    Process,
    Role,
    Running,
    Survivor,
    reaper_lost,
)

T = TypeVar("T")

END_WAIT = 15.0
"""Seconds that the reaper may take to kill what still runs when the worker ends; then it is killed itself."""

_REPLY_WAIT = 1.0
_WHAT_REMAINS = 0

_ROLES: dict[int, Role] = {wire.ROOT: "root", wire.MEMBER: "member", wire.JOB: "job", wire.DAEMON: "daemon"}

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


class Reaper:
    """The reaper process, seen from the worker. Made by `open_reaper`."""

    def __init__(self, connection: socket.socket, name: str, nursery: trio.Nursery, process: trio.Process) -> None:
        self._socket = connection
        self._process = process
        self._name = name
        self._nursery = nursery
        self._lost = False
        self._waiting = trio.Lock()
        self._last_key = 0
        self._starting: dict[int, _Answer[Process | tuple[int, int]]] = {}
        self._processes: dict[int, Process] = {}
        self._stopping: dict[int, _Answer[list[Survivor]]] = {}
        self._noting: dict[int, _Answer[list[Survivor]]] = {}
        self._listing: dict[int, tuple[list[Running], _Answer[list[Running]]]] = {}
        self._ready = trio.Event()
        self._tier = ""
        self._reasons: dict[str, str] = {}

    async def spawn(
        self,
        argv: Sequence[str | bytes],
        *,
        cwd: str,
        env: Mapping[str, str],
        fds: Mapping[int, int],
        output: int | None = None,
        script: int | None = None,
        terminal: bool = False,
    ) -> Process:
        """Start `argv[0]` (a path) in a session of its own.

        `fds` maps the child's descriptor numbers to ours; of 0, 1 and 2, those not named are /dev/null, everything
        else is closed. All signals have their defaults. `output` is the read end of a pipe that the child writes to:
        the reaper holds it too, so that nobody dies of a broken pipe when the worker stops reading or is gone. `script`
        is a file descriptor that the process finds as the path added to its arguments. `terminal`: its descriptor 0 is
        one, and becomes its controlling terminal. The caller keeps its descriptors. Nothing about size is checked here:
        arguments and environment may have megabytes.

        Raises DirectoryError if `cwd` cannot be entered, else CallError: `not_found`, `permission_denied`,
        `resource_exhausted` (too many processes or descriptors; arguments too long), `failed_precondition` (no
        program), `invalid_argument` (a NUL), `unavailable` (the reaper was killed).
        Cancellation: before the request is sent, nothing was started; after that it is not noticed here (it is a matter
        of a millisecond): the process is returned.
        """
        key = self._next_key()
        variables = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
        variables[wire.MARKER] = self.marker(key)
        flags = (wire.OUTPUT if output is not None else 0) | (wire.SCRIPT if script is not None else 0)
        flags |= wire.TERMINAL if terminal else 0
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
        started = await self._reply(answer)
        if isinstance(started, Process):
            return started
        raise _spawn_error(*started, cwd=cwd, program=os.fsdecode(program))

    async def _reply(self, answer: _Answer[T]) -> T:
        """Wait for a reply, whatever is cancelled meanwhile; a reaper that was stopped (SIGSTOP) is woken for it."""
        while not answer.arrived.is_set():
            with trio.CancelScope(shield=True), trio.move_on_after(_REPLY_WAIT) as waiting:
                await answer.arrived.wait()
            if waiting.cancelled_caught:
                self._process.send_signal(signal.SIGCONT)
        return answer.value()

    async def adopt(self, pid: int, pidfd: int, output: int, children: int) -> Process:
        """Look after somebody else's child, of which `pidfd` is a descriptor, as if it had been spawned here.

        `output` is the read end of its output pipe: kept open for what it leaves running, as `spawn` does. `children`
        is a file of `wire.CHILDREN_LIMIT` entries in which it notes the children it starts.
        It must be a session leader that has no children yet. Raises CallError: `not_found` if it has ended already,
        `resource_exhausted`, `unavailable`. Cancellation: as `spawn`.
        """
        key = self._next_key()
        answer = self._starting[key] = _Answer[Process | tuple[int, int]]()
        try:
            await self._send(wire.ADOPT, key, wire.NUMBER.pack(pid), [pidfd, output, children])
            started = await self._reply(answer)
        finally:
            del self._starting[key]
        if not isinstance(started, Process):
            raise _spawn_error(*started, cwd="/", program=f"process {pid}")
        self._processes.pop(key)  # it is its parent that learns how it ended
        return Process(self, key, pid, adopted=True)

    async def running(self) -> list[Running]:
        """Everything under this reaper that is alive at this moment, at most `wire.RUNNING_LIMIT` processes.

        Raises CallError("unavailable") if the reaper was killed. Cancellation: nothing happens.
        """
        key = self._next_key()
        answer = _Answer[list[Running]]()
        self._listing[key] = [], answer
        try:
            await self._send(wire.LIST, key)
            return await answer.wait()
        finally:
            del self._listing[key]

    async def tier(self) -> str:
        """The containment tier; CallError("unavailable") if the reaper was killed before it could say."""
        await self._ready.wait()
        if not self._tier:
            raise reaper_lost()
        return self._tier

    async def why_not_better(self) -> dict[str, str]:
        """For each tier that is better than this one, or was asked for in vain: why it cannot be had."""
        await self._ready.wait()
        return dict(self._reasons)

    async def end_tree(self, key: int, grace: float) -> list[Survivor]:
        """See `Process.kill_tree`; `key` is the process's."""
        answer = self._stopping.setdefault(key, _Answer[list[Survivor]]())
        stages = ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_WAIT), (_WHAT_REMAINS, _REPLY_WAIT))
        self._process.send_signal(signal.SIGCONT)  # a command that stopped it must not escape its own end
        try:
            with trio.CancelScope(shield=True):
                for number, patience in stages[grace <= 0 :]:
                    with trio.move_on_after(patience):
                        await self._send(wire.STOP, key, wire.NUMBER.pack(number))
                        return await answer.wait()
            raise reaper_lost()
        finally:
            self._stopping.pop(key, None)

    async def note_tree(self, key: int) -> None:
        """See `Process.note_tree`; `key` is the process's."""
        answer = self._noting.setdefault(key, _Answer[list[Survivor]]())
        try:
            await self._send(wire.STOP, key, wire.NUMBER.pack(_WHAT_REMAINS))
            await answer.wait()
        finally:
            self._noting.pop(key, None)

    def marker(self, key: int) -> bytes:
        """The value of the variable `wire.MARKER` for a process."""
        return b"%s.%d" % (self._name.encode(), key)

    def post(self, kind: int, key: int, body: bytes = b"") -> bool:
        """Send a request that has no answer; False if the reaper is gone.

        At once if the socket has room, which it has unless the reaper hangs.
        """
        try:
            self._socket.send(wire.HEADER.pack(kind, key) + body)
        except BlockingIOError:
            self._nursery.start_soon(self._post_later, kind, key, body)
        except OSError:  # `receive` tells everybody
            return False
        return True

    async def _post_later(self, kind: int, key: int, body: bytes) -> None:
        with suppress(CallError):  # `receive` tells everybody
            await self._send(kind, key, body)

    def _next_key(self) -> int:
        self._last_key += 1
        return self._last_key

    async def _send(self, kind: int, key: int, body: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        if self._lost:
            raise reaper_lost()
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
        while True:
            try:
                # One packet is taken as a whole or not at all, so that a cancelled send tears nothing.
                self._socket.sendmsg([wire.HEADER.pack(kind, key), body], ancillary if descriptors else [])
            except BlockingIOError:
                async with self._waiting:  # for Trio, one task at a time may
                    await trio.lowlevel.wait_writable(self._socket)
            except ConnectionError:
                raise reaper_lost() from None
            else:
                return

    async def receive(self) -> None:
        """Take the reaper's replies until it is gone: one task, for as long as the reaper is used."""
        with trio.CancelScope(shield=True):  # who waits for a process in a cancelled scope still needs the replies
            while packet := await self._receive_packet():
                kind, key = wire.HEADER.unpack_from(packet)
                self._take(kind, key, packet[wire.HEADER.size :])
        self._lost = True
        self._ready.set()
        for _, listing in self._listing.values():
            listing.fail()
        for starting in self._starting.values():
            starting.fail()
        for answer in (*self._stopping.values(), *self._noting.values()):
            answer.fail()
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
        elif kind == wire.READY:
            self._tier, self._reasons = wire.read_containment(body)
            self._ready.set()
        elif kind == wire.LISTED:
            self._take_listed(key, body)
        else:
            noting = self._noting.get(key)
            for answer in (noting, None if noting and kind == wire.REMAINING else self._stopping.get(key)):
                if answer is not None:  # else it came after its waiter had given up
                    answer.set(_survivors(body))

    def _take_listed(self, key: int, body: bytes) -> None:
        if key not in self._listing:  # nobody waits for it any more
            return
        listed, answer = self._listing[key]
        if not body:
            answer.set(listed)
        for command, role, (pid, start, line) in wire.read_running_list(body):
            listed.append(Running(command, _ROLES[role], pid, start, line.decode("utf-8", "replace")))


class _Answer(Generic[T]):
    """One reply that one task waits for."""

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self._value: T | None = None

    def set(self, value: T) -> None:
        self._value = value
        self.arrived.set()

    def fail(self) -> None:
        self.arrived.set()

    async def wait(self) -> T:
        await self.arrived.wait()
        return self.value()

    def value(self) -> T:
        """What has arrived. CallError if it was that the reaper is gone."""
        if self._value is None:
            raise reaper_lost()
        return self._value


@asynccontextmanager
async def open_reaper(tier: str | None = None) -> AsyncIterator[Reaper]:
    """Start the reaper and give the handle to it; on leaving, everything it still runs is killed, then it is gone too.

    `tier` is one of `tiers.TIERS`, None for the best this machine offers. Raises ContainmentError if it offers not
    that one.
    A small process stays behind only for background jobs that outlive the worker and hold an output pipe.
    Cancellation: as leaving; waits until what was running is gone, bounded by the reaper's own limit.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            name = os.urandom(4).hex()  # tells its markers from those of other reapers on the machine
            command = [sys.executable, "-I", "-S", "-c", _RUN, str(theirs.fileno()), tier or "", name]
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
                reaper = Reaper(ours, name, nursery, process)
                nursery.start_soon(reaper.receive)
                try:
                    if tier is not None:
                        await _check_tier(reaper, tier)
                    yield reaper
                finally:
                    ours.shutdown(socket.SHUT_WR)
                    with trio.CancelScope(shield=True):
                        await _end(process)


async def _end(process: trio.Process) -> None:
    """Wait for the reaper, which ends by itself; one that a command has stopped (SIGSTOP) is woken, or killed."""
    process.send_signal(signal.SIGCONT)
    with trio.move_on_after(END_WAIT):
        await process.wait()
        return
    process.kill()
    await process.wait()


async def _check_tier(reaper: Reaper, tier: str) -> None:
    reasons = await reaper.why_not_better()
    if tier in reasons:
        raise ContainmentError("failed_precondition", f"containment {tier!r} is not possible here: {reasons[tier]}")


def _survivors(listed: bytes) -> list[Survivor]:
    return [
        Survivor(pid, start, command.decode("utf-8", "replace"))
        for pid, start, command in wire.read_process_list(listed)
    ]


def _spawn_error(number: int, stage: int, *, cwd: str, program: str) -> CallError:
    code = _CODES.get(number, "failed_precondition")
    reason = os.strerror(number)
    if stage == wire.CWD:
        return DirectoryError(code, f"cannot work in directory {cwd!r}: {reason}", retryable=number in _RETRYABLE)
    return CallError(code, f"cannot start {program!r}: {reason}", retryable=number in _RETRYABLE)
