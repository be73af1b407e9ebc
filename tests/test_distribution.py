"""What is built for others to install: it holds all that its packages need, and runs where there is no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import rlm_wire

ROOT = Path(__file__).parent.parent
PACKAGES = {"rlm_wire", "rlm_worker", "rlm_harness", "rlm_verifiers"}
OWN_FILES = """\
import rlm_wire, rlm_worker, rlm_harness
print(rlm_wire.__file__, rlm_worker.__file__, rlm_harness.__file__)
"""
WORKER = """\
import trio
from rlm_harness import Workspace, local_worker_url
async def main():
    async with Workspace.connect(local_worker_url()) as workspace, workspace.agent() as agent:
        print((await agent.bash("echo $((6 * 7))")).output.text, end="")
        print((await agent.ipython("import sys; sys.modules['rlm_worker'].__file__")).result)
trio.run(main)
"""


class Installation:
    """The distribution, in the directory `site`; its dependencies are ours. Programs run in `away`."""

    def __init__(self, place: Path) -> None:
        self.site, self.away = place / "site", place / "away"
        self.away.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RLM_"))}
        return kept | {"PYTHONPATH": str(self.site), "RLM_HOME": str(self.away / "home"), "NO_COLOR": "1"}

    async def run(self, *command: str) -> str:
        """What it prints; it must end well, and say nothing on stderr."""
        done = await trio.run_process(
            command, env=self.environment, cwd=self.away, capture_stdout=True, capture_stderr=True, check=False
        )
        assert (done.returncode, done.stderr.decode()) == (0, "")
        return done.stdout.decode()

    def program(self, name: str) -> str:
        return str(self.site / "bin" / name)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    place = tmp_path_factory.mktemp("distribution")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place / "wheel")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = (place / "wheel").iterdir()
    install = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--no-deps"]
    subprocess.run(
        [*install, "--no-index", "--target", str(place / "site"), str(wheel)], check=True, capture_output=True
    )
    return Installation(place)


def files_below(directory: Path) -> set[str]:
    found = {path.relative_to(directory) for path in directory.rglob("*") if path.is_file()}
    return {str(path) for path in found if "__pycache__" not in path.parts}


def test_it_holds_every_file_of_our_packages_and_nothing_else(installation: Installation) -> None:
    known = {"bin", f"rlm_wire-{rlm_wire.__version__}.dist-info"}
    assert {path.name for path in installation.site.iterdir()} == PACKAGES | known
    for package in sorted(PACKAGES):
        assert files_below(installation.site / package) == files_below(ROOT / package)
    for typed in ("rlm_wire", "rlm_worker", "rlm_harness"):
        assert (installation.site / typed / "py.typed").exists()


async def test_its_packages_are_imported_from_where_it_is(installation: Installation) -> None:
    files = (await installation.run(sys.executable, "-c", OWN_FILES)).split()
    assert files == [
        str(installation.site / name / "__init__.py") for name in ("rlm_wire", "rlm_worker", "rlm_harness")
    ]


@pytest.mark.parametrize("name", ["rlm", "rlm-harness", "rlm-worker", "rlm-wire"])
async def test_each_program_of_it_tells_its_version(installation: Installation, name: str) -> None:
    said = await installation.run(installation.program(name), "--version")
    assert said.split()[1:] == [rlm_wire.__version__]


async def test_its_worker_runs_commands_and_cells_with_its_own_code(installation: Installation) -> None:
    said = await installation.run(sys.executable, "-c", WORKER)
    assert said == f"42\n{str(installation.site / 'rlm_worker' / '__init__.py')!r}\n"


async def test_the_demos_project_comes_with_it(installation: Installation) -> None:
    said = await installation.run(installation.program("rlm-harness"), "demo")
    assert "PASSED" in said
    assert "9 passed" in said


async def test_it_is_driven_over_acp_and_ends_with_its_input(installation: Installation) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    process = await trio.lowlevel.open_process(
        [installation.program("rlm"), "--acp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=installation.environment,
        cwd=installation.away,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send_all(json.dumps(request).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            received = await process.stdout.receive_some()
            assert received, answer
            answer += received
        assert json.loads(answer)["result"]["agentInfo"]["version"] == rlm_wire.__version__
        await process.stdin.aclose()
        assert await process.stdout.receive_some() == b""
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
