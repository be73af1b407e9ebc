"""What worker and reaper say to each other: packets of a SOCK_SEQPACKET socketpair. Pure, and quick to import.

A packet is one byte of kind, an eight-byte key (which process or stop it is about; the worker counts them), and a body:

=========  =========  ==============================================================================
request    SPAWN      spawn_body(); descriptors: [body, if it was too large for a packet], sources, [output], [script]
           SIGNAL     signal number, for the process group
           STOP       signal number, for everything that descends from the process; 0 only asks, and what
                      descends from it now will count as descending from it for good
           RELEASE    the worker reads no more: drain the output pipe until its last writer has closed it
           ADOPT      pid; descriptors: pidfd, output, children: treat somebody else's child as if spawned with this
                      key; `children` is a file in which it notes its own ones, CHILD by CHILD
           LIST       nothing: what runs
reply      READY      containment(): sent once, first; without a tier, nothing else will come
           SPAWNED    pid; answers SPAWN and ADOPT
           FAILED     errno, stage (CWD or EXEC)
           EXITED     return code, processes(): what the command has left running
           GONE       processes(): nothing of the stopped tree is left; what had left it before runs on
           REMAINING  processes(): the answer to signal 0: what still descends from it
           LISTED     running(): a part of what runs; an empty one is the last
=========  =========  ==============================================================================

Strings are NUL-terminated, as the kernel has them. Start times are clock ticks since boot, as in `/proc/PID/stat`.
"""

from __future__ import annotations

import struct

SPAWN, SIGNAL, STOP, RELEASE, ADOPT, LIST, READY, SPAWNED, FAILED, EXITED, GONE, REMAINING, LISTED = range(1, 14)
ROOT, MEMBER, JOB, DAEMON = range(4)
CWD, EXEC = 1, 2
BODY_APART, OUTPUT, SCRIPT, TERMINAL = 1, 2, 4, 8

HEADER = struct.Struct("!BQ")
NUMBER = struct.Struct("!i")
FAILURE = struct.Struct("!iB")
CHILD = struct.Struct("=qQ")
"""A child that was noted: pid, and ticks since boot when it had been started. All zero: none."""

_SPAWN = struct.Struct("!BBI")
_ENTRY = struct.Struct("!iQH")
_RUNNING = struct.Struct("!QBiQH")

PACKET_LIMIT = 64 * 1024
"""Bytes of one packet. A quarter of Linux's default socket buffer, so that a packet always fits an empty one."""

DESCRIPTOR_LIMIT = 64
"""Descriptors that one SPAWN may carry; the kernel's own limit is 253."""

LISTED_LIMIT = 64
"""Processes named in one reply; a fork bomb is not worth a longer list."""

CHILDREN_LIMIT = 4096
"""Children that one process notes."""

RUNNING_LIMIT = 4096
"""Processes in all the LISTED packets of one answer."""

COMMAND_LIMIT = 200
"""Bytes kept of a command line in a reply."""

MARKER = b"RLM_PROCESS"
"""Environment variable that tells, of a daemon that cut all ties, which command had started it."""

ProcessEntry = tuple[int, int, bytes]
"""pid, start time, command line (arguments joined by spaces, cut)."""

RunningEntry = tuple[int, int, ProcessEntry]
"""Key of the command it belongs to (0: unknown), role (ROOT: the command itself, MEMBER: what descends from it, JOB and
DAEMON: what it has left running), and the process."""


def spawn_body(targets: list[int], flags: int, cwd: bytes, argv: list[bytes], env: dict[bytes, bytes]) -> bytes:
    """The body of SPAWN: `targets` are the child's descriptor numbers, in the order of the sources sent along.

    Raises ValueError if a string holds a NUL, or the name of a variable a "=".
    """
    strings = b"\0".join([cwd, *argv, *[name + b"=" + value for name, value in env.items()]])
    if strings.count(b"\0") != len(argv) + len(env):
        raise ValueError("a directory, an argument or a variable holds a NUL character, which no process can be given")
    if any(b"=" in name for name in env):
        raise ValueError("the name of an environment variable holds a '='")
    return _SPAWN.pack(len(targets), flags, len(argv)) + struct.pack(f"!{len(targets)}I", *targets) + strings


def read_spawn_body(body: bytes) -> tuple[list[int], int, bytes, list[bytes], dict[bytes, bytes]]:
    count, flags, argc = _SPAWN.unpack_from(body)
    strings = _SPAWN.size + 4 * count
    cwd, *rest = body[strings:].split(b"\0")
    env = dict(entry.split(b"=", 1) for entry in rest[argc:])
    return list(struct.unpack_from(f"!{count}I", body, _SPAWN.size)), flags, cwd, rest[:argc], env


def process_list(processes: list[ProcessEntry]) -> bytes:
    """Encode at most `LISTED_LIMIT` processes."""
    kept = [(pid, start, command[:COMMAND_LIMIT]) for pid, start, command in processes[:LISTED_LIMIT]]
    return b"".join(_ENTRY.pack(pid, start, len(command)) + command for pid, start, command in kept)


def read_process_list(data: bytes) -> list[ProcessEntry]:
    processes = []
    position = 0
    while position < len(data):
        pid, start, length = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        processes.append((pid, start, data[position : position + length]))
        position += length
    return processes


def running_lists(entries: list[RunningEntry]) -> list[bytes]:
    """Encode at most `RUNNING_LIMIT` processes as the bodies of as many packets as it takes."""
    bodies = [b""]
    for key, role, (pid, start, command) in entries[:RUNNING_LIMIT]:
        encoded = _RUNNING.pack(key, role, pid, start, len(command[:COMMAND_LIMIT])) + command[:COMMAND_LIMIT]
        if len(bodies[-1]) + len(encoded) > PACKET_LIMIT - HEADER.size:
            bodies.append(b"")
        bodies[-1] += encoded
    return [body for body in bodies if body]


def read_running_list(data: bytes) -> list[RunningEntry]:
    entries = []
    position = 0
    while position < len(data):
        key, role, pid, start, length = _RUNNING.unpack_from(data, position)
        position += _RUNNING.size
        entries.append((key, role, (pid, start, data[position : position + length])))
        position += length
    return entries


def containment(tier: str, reasons: dict[str, str]) -> bytes:
    """The body of READY: the tier (empty: the one that was asked for is not possible), and why not a better one."""
    return "\0".join([tier, *[part for reason in reasons.items() for part in reason]]).encode()


def read_containment(body: bytes) -> tuple[str, dict[str, str]]:
    tier, *rest = body.decode().split("\0")
    return tier, dict(zip(rest[::2], rest[1::2], strict=True))
