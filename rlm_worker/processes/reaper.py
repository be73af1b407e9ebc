"""The reaper: the small process under which every process of the workspace lives. Only what runs in that process.

It is started with `python -I -S` and imports a few quick modules of the standard library, no more. It has one thread,
is a subreaper (orphans of its descendants become its children), and never runs code between fork and exec:
`os.posix_spawn` starts everything. The worker talks to it in the packets of `wire`. When the worker's end closes,
whatever it was still running is killed; what had left (daemons, background jobs of commands that have ended) runs on,
and the reaper stays only while one of those holds an output pipe, which it drains so that nobody dies of a broken one.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from rlm_worker.processes import process_table, wire
from rlm_worker.processes.tree import Tree

_PR_SET_CHILD_SUBREAPER = 36

_LAST_WORDS = 5.0
"""Seconds that killed processes get to disappear once the worker is gone (one may sleep in a dead file system)."""

_YOUNG = 2.0
"""Seconds for which pids cannot have wrapped round, so that all that a command started has a higher pid than it."""

_DRAIN_SIZE = 64 * 1024


_FileAction = tuple[int, int, int] | tuple[int, int, str, int, int]


class _Command:
    """One process the worker asked for; `output` and `script` are descriptors held for it, -1 if none."""

    __slots__ = ("born", "key", "line", "output", "pid", "released", "running", "script")

    def __init__(self, key: int, pid: int, line: bytes, output: int, script: int) -> None:
        self.key = key
        self.pid = pid
        self.line = line
        self.output = output
        self.script = script
        self.born = time.monotonic()
        self.running = True
        self.released = False


class _Stop:
    """One tree being ended, the last signal it got, and a pidfd of a member that is not our child (-1: none)."""

    __slots__ = ("command", "key", "signal", "tree", "watched")

    def __init__(self, key: int, tree: Tree, command: _Command | None) -> None:
        self.key = key
        self.tree = tree
        self.command = command
        self.signal = 0
        self.watched = -1


class Reaper:
    """The state of the process: what it started, what it is stopping, and which pipes it drains."""

    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._connected = True
        self._pid = os.getpid()
        self._commands: dict[int, _Command] = {}
        self._by_pid: dict[int, _Command] = {}
        self._stops: dict[int, _Stop] = {}
        self._drains: set[int] = set()
        self._left_by: dict[int, int] = {}  # pid of an orphan -> key of the command that left it
        self._poll = select.poll()
        self._wakeup, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Meant for a terminal's foreground group, or sent by a command to its parent: the reaper must outlive both.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        self._poll.register(worker.fileno(), select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)

    def run(self) -> None:
        """Serve until the worker is gone; drain, as a process of its own, the pipes that are still held then."""
        while self._connected:
            self._wait()
        self._worker.close()
        if self._drains and os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while self._drains:
                self._wait()

    def _wait(self) -> None:
        for descriptor, _ in self._poll.poll():
            if descriptor == self._wakeup:
                os.read(self._wakeup, 4096)
                self._reap()
            elif descriptor == self._worker.fileno():
                self._receive()
            elif descriptor in self._drains:
                self._drain(descriptor)
            else:
                self._check_watched(descriptor)

    # --- the worker's requests ---

    def _receive(self) -> None:
        ancillary_space = socket.CMSG_SPACE(4 * wire.DESCRIPTOR_LIMIT)
        try:
            packet, ancillary, flags, _ = self._worker.recvmsg(
                wire.PACKET_LIMIT, ancillary_space, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            packet, ancillary, flags = b"", [], 0
        if not packet:
            self._lose_worker()
            return
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        kind, key = wire.HEADER.unpack_from(packet)
        body = packet[wire.HEADER.size :]
        if kind == wire.SPAWN:
            self._spawn(key, body, list(descriptors), complete=not flags & socket.MSG_CTRUNC)
        elif kind == wire.SIGNAL:
            self._signal_group(key, *wire.NUMBER.unpack(body))
        elif kind == wire.STOP:
            self._stop(key, *wire.TARGET.unpack(body))
        elif kind == wire.RELEASE:
            self._release(key)

    def _spawn(self, key: int, body: bytes, descriptors: list[int], *, complete: bool) -> None:
        kept: list[int] = []
        try:
            if not complete:  # our own table of descriptors is full
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if not body:
                os.lseek(descriptors[0], 0, os.SEEK_SET)
                body = _read_all(descriptors[0])
            self._start(key, body, descriptors, kept)
        except OSError as error:
            stage = wire.CWD if error.filename == _CWD else wire.EXEC
            self._tell(wire.FAILED, key, wire.FAILURE.pack(error.errno or errno.EIO, stage))
            kept = []
        finally:
            for descriptor in set(descriptors) - set(kept):
                os.close(descriptor)

    def _start(self, key: int, body: bytes, descriptors: list[int], kept: list[int]) -> None:
        targets, flags, cwd, argv, env = wire.read_spawn_body(body)
        sources = descriptors[1:] if flags & wire.BODY_APART else descriptors[:]
        script = sources.pop() if flags & wire.SCRIPT else -1
        output = sources.pop() if flags & wire.OUTPUT else -1
        kept += [descriptor for descriptor in (script, output) if descriptor >= 0]
        if script >= 0:
            argv.append(b"/proc/%d/fd/%d" % (self._pid, script))
        actions: list[_FileAction] = [
            (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in {0, 1, 2} - set(targets)
        ]
        raised = []
        try:
            for source, target in zip(sources, targets, strict=True):
                # A copy above every target, or an earlier dup2 of the child could overwrite a later one's source.
                raised.append(fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, max(targets) + 1))
                actions.append((os.POSIX_SPAWN_DUP2, raised[-1], target))
            pid = _spawn_in(cwd, argv, env, actions)
        finally:
            for descriptor in raised:
                os.close(descriptor)
        self._commands[key] = self._by_pid[pid] = _Command(key, pid, b" ".join(argv), output, script)
        self._tell(wire.SPAWNED, key, wire.NUMBER.pack(pid))

    def _signal_group(self, key: int, number: int) -> None:
        command = self._commands.get(key)
        if command is not None and command.running:  # not reaped, so that pid and group are still its own
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(command.pid, number)

    def _stop(self, key: int, number: int, pid: int, start: int) -> None:
        stop = self._stops.get(key) or self._new_stop(key, pid, start)
        if number == 0:
            rows = stop.tree.living()
            self._tell(wire.REMAINING, key, wire.process_list([_entry(row) for row in rows]))
            return
        self._stops[key] = stop
        stop.signal = number
        stop.tree.signal(number)
        self._check(stop)

    def _new_stop(self, key: int, pid: int, start: int) -> _Stop:
        command = self._commands.get(key)
        if command is not None:  # not reaped, or else its number is still the one of its session
            row = process_table.row(command.pid) if command.running else None
            pid, start = command.pid, row.start if row else 0
        return _Stop(key, Tree((pid, start), self._pid), command)

    def _check(self, stop: _Stop) -> None:
        """Say so when nothing of a stopped tree is left; kill what appeared since SIGKILL was sent."""
        self._unwatch(stop)
        while members := stop.tree.living():
            if stop.signal == signal.SIGKILL:
                stop.tree.signal(signal.SIGKILL)
                if self._reap_children():
                    continue
            self._watch(stop, members)
            return
        del self._stops[stop.key]
        left = self._left(stop.command) if stop.command is not None else []
        self._tell(wire.GONE, stop.key, wire.process_list(left))

    def _watch(self, stop: _Stop, members: list[process_table.Row]) -> None:
        """Wake up when a member ends that is somebody else's child; our own children's ends come by SIGCHLD."""
        for member in members:
            if member.parent != self._pid:
                try:
                    stop.watched = os.pidfd_open(member.pid)
                except OSError:  # gone meanwhile: its children are ours now
                    continue
                self._poll.register(stop.watched, select.POLLIN)
                return

    def _check_watched(self, descriptor: int) -> None:
        for stop in list(self._stops.values()):
            if stop.watched == descriptor:
                self._check(stop)

    def _unwatch(self, stop: _Stop) -> None:
        if stop.watched >= 0:
            self._poll.unregister(stop.watched)
            os.close(stop.watched)
            stop.watched = -1

    def _release(self, key: int) -> None:
        command = self._commands.get(key)
        if command is None:
            return
        command.released = True
        if not command.running:
            self._forget(command)

    def _forget(self, command: _Command) -> None:
        del self._commands[command.key]
        if command.output >= 0:
            os.set_blocking(command.output, False)
            self._drains.add(command.output)
            self._poll.register(command.output, select.POLLIN)
            self._drain(command.output)

    def _drain(self, descriptor: int) -> None:
        """Throw away what a background job still writes; close the pipe with its last writer."""
        try:
            if os.read(descriptor, _DRAIN_SIZE):
                return
        except BlockingIOError:
            return
        self._drains.discard(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)

    # --- ends ---

    def _reap(self) -> None:
        self._reap_children()
        for stop in list(self._stops.values()):
            self._check(stop)

    def _reap_children(self) -> int:
        """Reap all that has ended and report the commands among it; returns how many there were."""
        ended: list[tuple[_Command, int]] = []
        count = 0
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            count += 1
            self._left_by.pop(pid, None)
            command = self._by_pid.pop(pid, None)
            if command is not None:
                command.running = False
                ended.append((command, os.waitstatus_to_exitcode(status)))
        for command, returncode in ended:
            if command.script >= 0:
                os.close(command.script)
            body = wire.NUMBER.pack(returncode) + wire.process_list(self._left(command))
            self._tell(wire.EXITED, command.key, body)
            if command.released:
                self._forget(command)
        return count

    def _left(self, command: _Command) -> list[wire.ProcessEntry]:
        """The orphans that an ended command has left behind."""
        newest = process_table.last_pid()
        young = time.monotonic() - command.born < _YOUNG and newest >= command.pid
        rows = process_table.table(range(command.pid + 1, newest + 1) if young else None)
        for row in rows.values():
            orphan = row.parent == self._pid and row.pid not in self._by_pid and row.pid not in self._left_by
            if orphan and (row.session == command.pid or process_table.has_variable(row.pid, wire.MARKER, command.key)):
                self._left_by[row.pid] = command.key
        left = [rows[pid] for pid, key in self._left_by.items() if key == command.key and pid in rows]
        entries = [_entry(row) for row in left if row.alive]
        # A job that was forked but has not become its program yet would show the internal path of the script.
        return [(pid, start, _JOB if line == command.line else line) for pid, start, line in entries]

    def _lose_worker(self) -> None:
        """The worker is gone: kill what it was running. What had left runs on."""
        self._connected = False
        self._poll.unregister(self._worker.fileno())
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, 2)  # whoever reads the worker's stderr must see its end
        self._stops.clear()
        for command in list(self._by_pid.values()):
            stop = self._stops[command.key] = self._new_stop(command.key, 0, 0)
            stop.signal = signal.SIGKILL
            stop.tree.signal(signal.SIGKILL)
        deadline = time.monotonic() + _LAST_WORDS
        self._reap()
        while self._stops and (left := deadline - time.monotonic()) > 0:
            select.select([self._wakeup], [], [], left)
            os.read(self._wakeup, 4096)
            self._reap()
        self._reap_children()
        for command in list(self._commands.values()):
            self._forget(command)

    def _tell(self, kind: int, key: int, body: bytes) -> None:
        if self._connected:
            with suppress(ConnectionError):  # the end of the stream is about to be read
                self._worker.send(wire.HEADER.pack(kind, key) + body)


_CWD = b"<cwd>"
_JOB = b"(background job)"
_ALL_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def _spawn_in(cwd: bytes, argv: list[bytes], env: dict[bytes, bytes], actions: list[_FileAction]) -> int:
    """posix_spawn knows no directory; with a single thread, our own is nobody else's."""
    try:
        os.chdir(cwd)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), _CWD) from None
    try:
        return os.posix_spawn(
            argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_ALL_SIGNALS
        )
    finally:
        os.chdir("/")  # or the directory could not be unmounted


def _entry(row: process_table.Row) -> wire.ProcessEntry:
    return row.pid, row.start, process_table.command_line(row.pid)


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def main() -> None:
    """Serve the worker whose socket is descriptor number `sys.argv[1]`."""
    worker = socket.socket(fileno=int(sys.argv[1]))
    worker.set_inheritable(False)
    os.chdir("/")
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel has no child subreaper")
    Reaper(worker).run()
