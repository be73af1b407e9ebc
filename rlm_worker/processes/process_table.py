"""What `/proc` knows about processes: parents, sessions, start times, command lines. Reads only; quick to import.

A process is identified by (pid, start time): a pid alone may be somebody else's by the time it is signalled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

Identity = tuple[int, int]

_READ_SIZE = 4096


class Row:
    """One line of the table."""

    __slots__ = ("parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The command name, in parentheses, may itself hold spaces and parentheses: fields count from the last one.
        fields = stat[stat.rindex(b")") + 2 :].split(b" ", 20)
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.start = int(fields[19])

    @property
    def identity(self) -> Identity:
        return self.pid, self.start

    @property
    def alive(self) -> bool:
        """False for one that has ended and only waits to be reaped."""
        return self.state not in b"ZXx"


class Snapshot:
    """All processes at one moment, also by parent and by session. `rows`, if given, is all that is of interest."""

    __slots__ = ("children", "rows", "sessions")

    def __init__(self, rows: dict[int, Row] | None = None) -> None:
        self.rows = table() if rows is None else rows
        self.children: dict[int, list[Row]] = {}
        self.sessions: dict[int, list[Row]] = {}
        for row in self.rows.values():
            self.children.setdefault(row.parent, []).append(row)
            self.sessions.setdefault(row.session, []).append(row)


def row(pid: int) -> Row | None:
    """The line of one process; None if there is none."""
    stat = _read(pid, "stat")
    return Row(pid, stat) if stat else None


def table(pids: Iterable[int] | None = None) -> dict[int, Row]:
    """The lines of `pids`, or of all processes, by pid."""
    found = map(row, _all_pids() if pids is None else pids)
    return {line.pid: line for line in found if line is not None}


def _all_pids() -> list[int]:
    with os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]


def command_line(pid: int) -> bytes:
    """Arguments joined by spaces; the bare name in brackets where there are none."""
    arguments = _read(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ")
    return arguments or b"[" + _read(pid, "comm").strip() + b"]"


def variable(pid: int, name: bytes) -> bytes:
    """What `name` stood for in the environment that `pid` was started with; empty if it was not there."""
    _, found, rest = (b"\0" + _read(pid, "environ")).partition(b"\0" + name + b"=")
    return rest.partition(b"\0")[0] if found else b""


def last_pid() -> int:
    """The pid that was given out last, 0 if unknown."""
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            return int(file.read(256).split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def _read(pid: int, name: str) -> bytes:
    try:
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)  # a file object takes twice as long
    except OSError:  # gone meanwhile, or somebody else's
        return b""
    content = b""
    try:
        while part := os.read(descriptor, _READ_SIZE):
            content += part
            if len(part) < _READ_SIZE and name == "stat":  # a line that comes in one piece
                break
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return content
