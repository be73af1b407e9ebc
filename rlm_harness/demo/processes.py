"""What a session left running, as the kernel tells it: a look through /proc, which trusts nobody's bookkeeping."""

from __future__ import annotations

import os
from pathlib import Path


def leftovers(directory: Path, marker: str) -> list[str]:
    """Each process that descends from this one, works below `directory`, or has `marker` in its environment.

    Named by id and command line. What has ended and only waits for its parent to notice runs no more. Raises
    FileNotFoundError where there is no /proc.
    """
    found = []
    parents = _running()
    for pid in parents:
        if pid != os.getpid() and (_descends(pid, parents) or _belongs(pid, directory, marker)):
            command = _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
            found.append(f"{pid} {command}")
    return found


def _running() -> dict[int, int]:
    """The parent of each process that has not ended."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # State and parent are behind the name, which may itself hold spaces and parentheses.
            fields = _read(int(entry.name), "stat").rpartition(b")")[2].split()
            if len(fields) > 1 and fields[0] not in {b"Z", b"X"}:
                parents[int(entry.name)] = int(fields[1])
    return parents


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid := parents.get(pid, 0):
        if pid == os.getpid():
            return True
    return False


def _belongs(pid: int, directory: Path, marker: str) -> bool:
    try:
        cwd = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:  # gone meanwhile, or another user's
        return False
    return cwd == directory or directory in cwd.parents or marker.encode() in _read(pid, "environ")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # gone meanwhile, or another user's
        return b""
