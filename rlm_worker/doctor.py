"""`rlm-worker doctor`: looks over the machine, says what is missing and what to do about it. Changes nothing."""

from __future__ import annotations

import json
import locale
import os
import platform
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec
import trio

from rlm_worker.processes import ContainmentError, open_reaper, process_table
from rlm_worker.processes.tiers import GROUP, NAMESPACE

LEAST_FILES = 1024
LEAST_PROCESSES = 256
LEAST_MEMORY = 512 << 20
"""Bytes: a worker with its kernel host has about 100 MiB, a kernel a few, what a cell loads comes on top."""

LEAST_DISK = 1 << 30

_CAP_SYS_PTRACE = 19

Status = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at; `advice` is what to do if it is not well."""

    name: str
    status: Status
    detail: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.status:4}  {self.name}: {self.detail}" + (f"\n      {self.advice}" if self.advice else "")


def examine(tier: str | None, cwd: str, env: Mapping[str, str]) -> list[Finding]:
    """Look over the machine. `env` is the environment that commands will have, `cwd` where they will work."""
    containment, found = trio.run(_containment, tier)
    checks: Sequence[Callable[[], Finding]] = (
        lambda: _bash(env),
        _python,
        _kernel_calls,
        _process_table,
        _locale,
        lambda: _directory("temporary directory", env.get("TMPDIR") or tempfile.gettempdir(), "set TMPDIR to"),
        lambda: _directory("working directory", cwd, "pass --cwd"),
        lambda: _directory("home directory", env.get("HOME", "/"), "set HOME to", needed=False),
        _open_files,
        _processes,
        _memory,
    )
    return [containment, _secrets(found), *(check() for check in checks)]


def report(findings: list[Finding], *, as_json: bool) -> tuple[str, int]:
    """What to print, and the exit code: 1 if anything failed."""
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        return json.dumps({"ok": not failed, "findings": msgspec.to_builtins(findings)}, indent=2), int(failed)
    return "\n".join(map(str, findings)), int(failed)


async def _containment(tier: str | None) -> tuple[Finding, str | None]:
    """What can be had, and its name."""
    try:
        async with open_reaper(tier) as reaper:
            found, reasons = await reaper.tier(), await reaper.why_not_better()
    except ContainmentError as error:
        return Finding("containment", "fail", error.message, "leave --containment and RLM_CONTAINMENT out"), None
    detail = f"tier {found}" + "".join(f"; not {better}: {reason}" for better, reason in reasons.items())
    if found == GROUP:
        advice = "what leaves its session cannot be found again; run where there is a child subreaper"
        return Finding("containment", "warn", detail, advice), found
    return Finding("containment", "ok", detail), found


def _secrets(tier: str | None) -> Finding:
    """Whether what agents run could read the worker's memory: it runs as the same user, with the same capabilities."""
    if tier == NAMESPACE:
        return Finding("secrets", "ok", "what agents run does not see the worker")
    effective = int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16)
    if effective >> _CAP_SYS_PTRACE & 1:
        advice = f"run the worker as an ordinary user, without that capability, or with --containment {NAMESPACE}"
        return Finding("secrets", "warn", "with CAP_SYS_PTRACE, agents can read the worker's memory and token", advice)
    return Finding("secrets", "ok", "what agents run cannot read the worker's memory")


def _bash(env: Mapping[str, str]) -> Finding:
    path = shutil.which("bash", path=env.get("PATH")) or shutil.which("bash", path="/bin:/usr/bin")
    if path is None:
        return Finding("bash", "fail", f"not found in {env.get('PATH')}", "install bash: commands and jobs run with it")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, env=dict(env))
    return Finding("bash", "ok", f"{path}: {said.stdout.partition(chr(10))[0]}")


def _python() -> Finding:
    python = f"Python {platform.python_version()}"
    try:
        return Finding("kernels", "ok", f"{python}, IPython {metadata.version('ipython')}")
    except metadata.PackageNotFoundError:
        return Finding(
            "kernels", "warn", f"{python} without IPython: cells cannot run", "pip install 'rlm-wire[worker]'"
        )


def _kernel_calls() -> Finding:
    try:
        os.close(os.memfd_create("doctor"))
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return Finding("system calls", "fail", f"memfd_create or pidfd_open: {error}", "needs Linux 5.3 or later")
    return Finding("system calls", "ok", f"Linux {os.uname().release}")


def _process_table() -> Finding:
    if process_table.row(os.getpid()) is None:
        return Finding("/proc", "fail", "not readable: what a command starts cannot be found", "mount /proc")
    return Finding("/proc", "ok", "readable")


def _locale() -> Finding:
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    except locale.Error:
        advice = "text is UTF-8 all the same, but tools such as sort and ls may show other characters as `?`"
        return Finding("locale", "warn", "there is no C.UTF-8", advice)
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    return Finding("locale", "ok", "C.UTF-8")


def _directory(name: str, path: str, advice: str, *, needed: bool = True) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding(
            name, "fail" if needed else "warn", f"{path}: {error.strerror}", f"{advice} one that can be written"
        )
    if free < LEAST_DISK:
        return Finding(name, "warn", f"{path}: {_size(free)} free", "make room: output and downloads go there")
    return Finding(name, "ok", f"{path}: {_size(free)} free")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < LEAST_FILES:
        return Finding("open files", "warn", f"at most {soft} (could be {hard})", f"raise it: ulimit -n {LEAST_FILES}")
    return Finding("open files", "ok", f"at most {soft}")


def _processes() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [soft] if soft >= 0 and os.getuid() != 0 else []
    limits += _group_limits(("pids.max",))
    if not limits:
        return Finding("processes", "ok", "no limit")
    if min(limits) < LEAST_PROCESSES:
        advice = "raise the limit (ulimit -u, or --pids-limit of the container)"
        return Finding("processes", "warn", f"at most {min(limits)}", advice)
    return Finding("processes", "ok", f"at most {min(limits)}")


def _memory() -> Finding:
    text = Path("/proc/meminfo").read_text()
    available = int(text.partition("MemAvailable:")[2].split()[0]) << 10
    limits = [limit for limit in _group_limits(("memory.max", "memory.limit_in_bytes")) if limit < 1 << 60]
    detail = f"{_size(available)} available" + (f", limited to {_size(min(limits))}" if limits else "")
    if min([available, *limits]) < LEAST_MEMORY:
        return Finding("memory", "warn", detail, "give it more: with less, kernels may be killed by the system")
    return Finding("memory", "ok", detail)


def _group_limits(names: Sequence[str]) -> list[int]:
    """The numbers in these files of our control groups, of either version, wherever they are mounted."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in {"/sys/fs/cgroup", "/sys/fs/cgroup/unified", f"/sys/fs/cgroup/{controllers}"}:
            for group in {f"{mount}{path}", mount}:
                for name in names:
                    found += _number(Path(group, name))
    return found


def _number(path: Path) -> list[int]:
    try:
        return [int(path.read_text())]
    except (OSError, ValueError):  # not there, not for us, or "max"
        return []


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"
