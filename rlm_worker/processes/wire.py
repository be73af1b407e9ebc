"""What worker and reaper say to each other: packets of a SOCK_SEQPACKET socketpair. Pure, and quick to import.

A packet is one byte of kind, an eight-byte key (which process or stop it is about; the worker counts them), and a body:

=========  =========  ==============================================================================
request    SPAWN      spawn_body(); descriptors: [body, if it was too large for a packet], sources, [output], [script]
           SIGNAL     signal number, for the process group
           STOP       signal number, pid, start time: signal everything that descends from that process (pid 0: from
                      the one that was spawned with this key); signal 0 only asks
           RELEASE    the worker reads no more: drain the output pipe until its last writer has closed it
reply      SPAWNED    pid
           FAILED     errno, stage (CWD or EXEC)
           EXITED     return code, processes(): what the command has left running
           GONE       processes(): nothing of the stopped tree is left; what had left it before runs on
           REMAINING  processes(): the answer to signal 0: what still descends from it
=========  =========  ==============================================================================

Strings are NUL-terminated, as the kernel has them. Start times are clock ticks since boot, as in `/proc/PID/stat`.
"""

from __future__ import annotations

import struct

SPAWN, SIGNAL, STOP, RELEASE, SPAWNED, FAILED, EXITED, GONE, REMAINING = range(1, 10)
CWD, EXEC = 1, 2
BODY_APART, OUTPUT, SCRIPT = 1, 2, 4

HEADER = struct.Struct("!BQ")
NUMBER = struct.Struct("!i")
TARGET = struct.Struct("!iiQ")
FAILURE = struct.Struct("!iB")
_SPAWN = struct.Struct("!BBI")
_ENTRY = struct.Struct("!iQH")

PACKET_LIMIT = 64 * 1024
"""Bytes of one packet. A quarter of Linux's default socket buffer, so that a packet always fits an empty one."""

DESCRIPTOR_LIMIT = 64
"""Descriptors that one SPAWN may carry; the kernel's own limit is 253."""

LISTED_LIMIT = 64
"""Processes named in one reply; a fork bomb is not worth a longer list."""

COMMAND_LIMIT = 200
"""Bytes kept of a command line in a reply."""

MARKER = b"RLM_PROCESS"
"""Environment variable that tells, of a daemon that cut all ties, which command had started it."""

ProcessEntry = tuple[int, int, bytes]
"""pid, start time, command line (arguments joined by spaces, cut)."""


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
