"""`rlm-worker doctor` as its users run it, on this machine and on worse ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlm_worker.processes.tiers import TIERS

COMMAND = [sys.executable, "-m", "rlm_worker", "doctor"]
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
CAP_SYS_PTRACE, CAP_SYS_ADMIN = 19, 21
CAPABILITIES = int(Path("/proc/self/status").read_text().partition("CapEff:\t")[2].partition("\n")[0], 16)


def doctor(*arguments: str, before: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **env}
    return subprocess.run([*before, *COMMAND, *arguments], capture_output=True, text=True, check=False, env=environ)


def test_a_good_machine_is_well() -> None:
    done = doctor()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok    containment: tier ")
    assert any(line.startswith("ok    bash: ") for line in lines)


@pytest.mark.parametrize("tier", TIERS)
def test_it_speaks_for_programs_too_and_tries_the_tier_it_is_asked_for(tier: str) -> None:
    done = doctor("--json", RLM_CONTAINMENT=tier)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ok"]) == (0, True)
    (containment,) = [finding for finding in answer["findings"] if finding["name"] == "containment"]
    assert containment["detail"].startswith(f"tier {tier}")
    assert containment["status"] == ("warn" if tier == "process-group" else "ok")


def test_it_says_why_not_a_better_tier() -> None:
    done = doctor(before=tuple(POWERLESS))
    assert done.returncode == 0
    line = done.stdout.splitlines()[0]
    assert "tier subreaper; not cgroup: " in line
    assert "not pid-namespace: " in line


def test_what_is_missing_fails_with_what_to_do(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    done = doctor("--cwd", missing, TMPDIR=missing, PATH="/nothing")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert f"fail  temporary directory: {missing}: No such file or directory" in lines
    assert "      set TMPDIR to one that can be written" in lines
    assert f"fail  working directory: {missing}: No such file or directory" in lines
    refused = doctor("--containment", "cgroup", before=tuple(POWERLESS))
    assert refused.returncode == 1
    assert refused.stdout.startswith("fail  containment: ")


@pytest.mark.skipif(
    not (CAPABILITIES >> CAP_SYS_PTRACE & 1 and CAPABILITIES >> CAP_SYS_ADMIN & 1),
    reason="without these capabilities there is nothing to tell of",
)
def test_agents_that_could_read_the_workers_memory_are_told_of() -> None:
    said = {}
    for name, before, arguments in (
        ("root", (), ()),
        ("without it", ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all"), ()),
        ("out of sight", (), ("--containment", "pid-namespace")),
    ):
        findings = json.loads(doctor("--json", *arguments, before=before).stdout)["findings"]
        said[name] = [finding["status"] for finding in findings if finding["name"] == "secrets"]
    assert said == {"root": ["warn"], "without it": ["ok"], "out of sight": ["ok"]}


def test_few_descriptors_are_a_warning() -> None:
    done = doctor(before=("prlimit", "--nofile=256:512"))
    assert done.returncode == 0
    assert "warn  open files: at most 256 (could be 512)" in done.stdout.splitlines()


def test_a_wrong_tier_in_the_environment_is_one_line() -> None:
    done = doctor(RLM_CONTAINMENT="jail")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rlm-worker: RLM_CONTAINMENT=jail is not one of cgroup, ")
