"""The reaper: the small process under which every process of the workspace lives. Only its loop and its answers.

It is started with `python -I -S` and imports a few quick modules of the standard library, no more. It has one thread,
and orphans of its descendants become its children. The worker talks to it in the packets of `wire`. When the worker's
end closes, whatever it was still running or stopping is killed; what had left (daemons, background jobs of commands
that have ended) runs on, and the reaper stays only while one of those holds an output pipe, which it drains so that
nobody dies of a broken one, or lives in the reaper's own PID namespace.
"""

from __future__ import annotations

import array
import errno
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from rlm_worker.processes import process_table, wire
from rlm_worker.processes.commands import Command, Commands, entry
from rlm_worker.processes.process_table import Snapshot
from rlm_worker.processes.starting import CWD, Order, spawn
from rlm_worker.processes.stops import Stop
from rlm_worker.processes.tiers import NAMESPACE, Containment, take_up
from rlm_worker.processes.tree import signal_all

_LAST_WORDS = 5.0
"""Seconds that killed processes get to disappear once the worker is gone (one may sleep in a dead file system)."""

_QUIET = 0.1
"""Seconds without anything to do after which a fresh leaf is entered: a short command ends before, leaving its own."""

_BURST = 1024
"""Requests that are taken at a time, so that many trees can be stopped together; then it is somebody else's turn."""

_DRAIN_SIZE = 64 * 1024


class Reaper:
    """The state of the process: what it started, what it is stopping, and which pipes it drains."""

    def __init__(self, worker: socket.socket, containment: Containment, name: str) -> None:
        self._worker = worker
        self._connected = True
        self._containment = containment
        self._directory = containment.directory
        self._adopter = containment.adopter
        self._commands = Commands(self._adopter, name.encode())
        self._stops: dict[int, Stop] = {}
        self._asked: dict[int, Stop] = {}
        self._reaped: set[int] = set()
        """What has ended since `_reap` last saw to the trees that it was of."""
        self._drains: set[int] = set()
        self._poll = select.poll()
        self._actions: dict[int, Callable[[int], None]] = {}
        self._wakeup, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Meant for a terminal's foreground group, or sent by a command to its parent: the reaper must outlive both.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        self._watch(worker.fileno(), select.POLLIN, self._receive)
        self._watch(self._wakeup, select.POLLIN, self._reap)

    def run(self) -> None:
        """Serve until the worker is gone; then stay, as a process of its own, as long as somebody needs it."""
        self._tell(wire.READY, 0, wire.containment(self._containment.tier, self._containment.reasons))
        while self._connected:
            if self._directory is None or self._directory.prepared:
                self._wait()
            elif not self._wait(_QUIET):
                with suppress(OSError):  # the next command will say so
                    self._directory.enter_leaf()
                self._commands.sweep()
        self._worker.close()
        if self._containment.tier == NAMESPACE:
            os.close(self._containment.outside)
            while self._has_children():  # they would end with us
                self._wait()
        elif self._drains and os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            while self._drains:
                self._wait()

    def _wait(self, seconds: float | None = None) -> bool:
        """Do what there is to do; False if nothing was, for so long."""
        ready = self._poll.poll(None if seconds is None else seconds * 1000)
        for descriptor, _ in ready:
            action = self._actions.get(descriptor)
            if action is not None:  # else an earlier one of this round has done away with it
                action(descriptor)
        return bool(ready)

    def _watch(self, descriptor: int, events: int, action: Callable[[int], None]) -> None:
        self._actions[descriptor] = action
        self._poll.register(descriptor, events)

    def _unwatch(self, descriptor: int) -> None:
        del self._actions[descriptor]
        self._poll.unregister(descriptor)

    # --- the worker's requests ---

    def _receive(self, _: int) -> None:
        for _ in range(_BURST):
            if not self._take_packet():
                break
        self._signal_asked()

    def _take_packet(self) -> bool:
        """Do what the next request says, but for what is done to trees; False if there is none."""
        ancillary_space = socket.CMSG_SPACE(4 * wire.DESCRIPTOR_LIMIT)
        try:
            packet, ancillary, flags, _ = self._worker.recvmsg(
                wire.PACKET_LIMIT, ancillary_space, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            return False
        except ConnectionError:
            packet, ancillary, flags = b"", [], 0
        if not packet:
            self._lose_worker()
            return False
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        kind, key = wire.HEADER.unpack_from(packet)
        body = packet[wire.HEADER.size :]
        if kind in (wire.SPAWN, wire.ADOPT):
            begin = self._spawn if kind == wire.SPAWN else self._adopt
            self._begin(begin, key, body, list(descriptors), complete=not flags & socket.MSG_CTRUNC)
        elif kind == wire.SIGNAL:
            self._signal_group(key, *wire.NUMBER.unpack(body))
        elif kind == wire.STOP:
            self._stop(key, *wire.NUMBER.unpack(body))
        elif kind == wire.RELEASE:
            self._release(key)
        elif kind == wire.LIST:
            self._list(key)
        return True

    def _begin(
        self, begin: Callable[[int, bytes, list[int]], Command], key: int, body: bytes, descriptors: list[int],
        *, complete: bool,
    ) -> None:  # fmt: skip
        kept: set[int] = set()
        try:
            if not complete:  # our own table of descriptors is full
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            command = begin(key, body, descriptors)
        except OSError as error:
            stage = wire.CWD if error.filename == CWD else wire.EXEC
            self._tell(wire.FAILED, key, wire.FAILURE.pack(error.errno or errno.EIO, stage))
        else:
            kept = {command.output, command.script, command.children}
            self._commands.add(command)
            self._tell(wire.SPAWNED, key, wire.NUMBER.pack(command.pid))
        finally:
            for descriptor in set(descriptors) - kept:
                os.close(descriptor)

    def _spawn(self, key: int, body: bytes, descriptors: list[int]) -> Command:
        order = Order(body, descriptors)
        leaf = self._directory.enter_leaf() if self._directory is not None else None
        command = Command(key, spawn(order), b" ".join(order.argv), leaf)
        if self._directory is not None:
            self._directory.take_leaf()
        command.output, command.script = order.output, order.script
        return command

    def _adopt(self, key: int, body: bytes, descriptors: list[int]) -> Command:
        (pid,) = wire.NUMBER.unpack(body)
        row = process_table.row(pid)
        pidfd, output, children = descriptors
        if row is None or select.select([pidfd], [], [], 0)[0]:  # it has ended, the number may be reused
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        leaf = self._directory.leaf() if self._directory is not None else None
        if leaf is not None:
            try:
                leaf.add(pid)
            except OSError:
                leaf.remove()
                raise
        command = Command(key, pid, process_table.command_line(pid), leaf)
        command.adopted, command.start, command.output, command.children = True, row.start, output, children
        return command

    def _signal_group(self, key: int, number: int) -> None:
        command = self._commands.get(key)
        if command is not None and command.running:  # not reaped, so that pid and group are still its own
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(command.pid, number)

    def _stop(self, key: int, number: int) -> None:
        command = self._commands.get(key)
        if command is None:
            self._tell(wire.GONE, key, b"")
            return
        stop = self._stops.get(key) or self._new_stop(command)
        if number == 0:
            command.noted = stop.tree
            self._tell(wire.REMAINING, key, wire.process_list([entry(row) for row in stop.tree.living(Snapshot())]))
            return
        self._stops[key] = self._asked[key] = stop
        stop.signal = number

    def _signal_asked(self) -> None:
        asked, self._asked = list(self._asked.values()), {}
        if asked:
            signal_all([(stop.tree, stop.signal) for stop in asked])
            self._check(asked)

    def _new_stop(self, command: Command) -> Stop:
        return Stop(command, command.tree(self._adopter, self._directory))

    def _check(self, stops: list[Stop]) -> None:
        """Say so when nothing of a stopped tree is left; kill what appeared since SIGKILL was sent."""
        while stops:
            for stop in stops:
                self._unwatch_stop(stop)
                stop.members = stop.tree.remaining()
            seen = None
            if quiet := [stop for stop in stops if not stop.members and stop.command.leaf is None]:
                seen = Snapshot()
                for stop in quiet:
                    stop.members = stop.tree.living(seen)
            if not all(stop.members for stop in stops):
                self._reap_children()  # what is gone must not be found as a zombie either
            for stop in stops:
                if stop.members:
                    self._watch_stop(stop)
                else:
                    self._finish(stop, seen)
            stops = [stop for stop in stops if stop.signal == signal.SIGKILL and stop.has_grown()]
            signal_all([(stop.tree, signal.SIGKILL) for stop in stops])

    def _finish(self, stop: Stop, seen: Snapshot | None) -> None:
        command = stop.command
        del self._stops[command.key]
        if command.adopted:
            self._commands.end(command.pid)
        self._tell(wire.GONE, command.key, wire.process_list(self._left(command, seen)))
        if command.adopted and command.released:
            self._forget(command)

    def _watch_stop(self, stop: Stop) -> None:
        """Wake up when the leaf is empty, or else when a member ends; our own children's ends come by SIGCHLD."""
        leaf = stop.command.leaf
        if leaf is not None and leaf.populated():
            stop.watched = leaf.events()
            self._watch(stop.watched, select.POLLPRI, lambda _: self._check([stop]))
            return
        for member in stop.members:
            if member.parent != os.getpid():
                try:
                    stop.watched = stop.pidfd = os.pidfd_open(member.pid)
                except OSError:  # gone meanwhile: its children are ours now
                    continue
                self._watch(stop.watched, select.POLLIN, lambda _: self._check([stop]))
                return

    def _unwatch_stop(self, stop: Stop) -> None:
        if stop.watched >= 0:
            self._unwatch(stop.watched)
            if stop.pidfd >= 0:
                os.close(stop.pidfd)
            stop.watched = stop.pidfd = -1

    def _release(self, key: int) -> None:
        command = self._commands.get(key)
        if command is None:
            return
        if key in self._asked:
            self._signal_asked()  # what is released is forgotten
        command.released = True
        if not command.running:
            self._forget(command)

    def _list(self, key: int) -> None:
        found = self._commands.all_processes(self._directory)
        entries = [(command, role, entry(row)) for command, role, row in found]
        for body in [*wire.running_lists(entries), b""]:
            self._tell(wire.LISTED, key, body)

    def _forget(self, command: Command) -> None:
        self._commands.forget(command)
        if command.output >= 0:
            os.set_blocking(command.output, False)
            self._drains.add(command.output)
            self._watch(command.output, select.POLLIN, self._drain)
            self._drain(command.output)

    def _drain(self, descriptor: int) -> None:
        """Throw away what a background job still writes; close the pipe with its last writer."""
        try:
            if os.read(descriptor, _DRAIN_SIZE):
                return
        except BlockingIOError:
            return
        except OSError:  # EIO, the end of a terminal
            pass
        self._drains.discard(descriptor)
        self._unwatch(descriptor)
        os.close(descriptor)

    # --- ends ---

    def _reap(self, _: int) -> None:
        with suppress(BlockingIOError):
            os.read(self._wakeup, 4096)
        self._reap_children()
        reaped, self._reaped = self._reaped, set()
        self._check([stop for stop in self._stops.values() if stop.tree.knows(reaped)])
        self._commands.sweep()

    def _reap_children(self) -> None:
        """Reap all that has ended and report the commands among it."""
        ended: list[tuple[Command, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._reaped.add(pid)
            command = self._commands.end(pid)
            if command is not None and not command.adopted:
                ended.append((command, os.waitstatus_to_exitcode(status)))
        seen = Snapshot() if len(ended) > 1 and self._directory is None else None
        for command, returncode in ended:
            if command.script >= 0:
                os.close(command.script)
            body = wire.NUMBER.pack(returncode) + wire.process_list(self._left(command, seen))
            self._tell(wire.EXITED, command.key, body)
            if command.released:
                self._forget(command)

    def _has_children(self) -> bool:
        self._reap_children()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _left(self, command: Command, seen: Snapshot | None) -> list[wire.ProcessEntry]:
        return [entry(row, command) for row in self._commands.left_by(command, seen)]

    def _lose_worker(self) -> None:
        """The worker is gone: kill what it was running or stopping. What had left runs on."""
        self._connected = False
        self._unwatch(self._worker.fileno())
        os.dup2(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), 2)  # whoever reads the worker's stderr must see its end
        underway, self._stops = self._stops, {}
        for stop in underway.values():
            self._unwatch_stop(stop)
        self._asked.clear()
        for command in self._commands.running():  # a kernel that left by itself now would orphan what is attached to it
            with suppress(ProcessLookupError, PermissionError):
                os.kill(command.pid, signal.SIGSTOP)
        for command in self._commands.remembered():
            if command.running or command.key in underway:  # of one that has ended, what ignores SIGTERM is still there
                stop = self._stops[command.key] = underway.get(command.key) or self._new_stop(command)
                stop.signal = signal.SIGKILL
        signal_all([(stop.tree, signal.SIGKILL) for stop in self._stops.values()])
        deadline = time.monotonic() + _LAST_WORDS
        self._reap_children()
        self._check(list(self._stops.values()))
        while self._stops and (left := deadline - time.monotonic()) > 0:
            self._wait(left)
        for stop in self._stops.values():  # what cannot be killed must not occupy us any more
            self._unwatch_stop(stop)
        self._stops.clear()
        for command in self._commands.remembered():
            self._forget(command)
        if self._directory is not None:
            self._directory.close([leaf for command in self._commands.kept() for leaf in command.leaves()])

    def _tell(self, kind: int, key: int, body: bytes) -> None:
        if self._connected:
            with suppress(ConnectionError):  # the end of the stream is about to be read
                self._worker.send(wire.HEADER.pack(kind, key) + body)


def main() -> None:
    """Serve a worker. Arguments: its socket's descriptor number, the tier (empty: the best), the name in markers."""
    worker = socket.socket(fileno=int(sys.argv[1]))
    worker.set_inheritable(False)
    os.chdir("/")
    containment = take_up(sys.argv[2], worker.close)
    if containment.tier:
        Reaper(worker, containment, sys.argv[3]).run()
    else:
        worker.send(wire.HEADER.pack(wire.READY, 0) + wire.containment("", containment.reasons))
