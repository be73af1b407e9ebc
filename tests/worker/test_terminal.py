"""B75: a terminal in the path of the protocol is refused with advice, and commands never see one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

import rlm_harness
import rlm_wire
from rlm_harness.workspace import local_worker_url

IN_A_TERMINAL = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"


async def test_b75_a_worker_behind_a_terminal_is_refused_with_advice() -> None:
    command = [sys.executable, "-c", IN_A_TERMINAL, sys.executable, "-m", "rlm_worker", "serve", "--stdio"]
    with pytest.raises(rlm_wire.WireError, match=r"terminal|--tcp"):
        async with rlm_wire.connect(f"stdio:{shlex.join(command)}"):
            pass


async def test_b75_a_server_that_does_not_notice_its_terminal_is_found_out_by_its_preface() -> None:
    program = "import os; os.write(1, bytes.fromhex('89524c4d570d0a1a')); os.read(0, 1)"
    command = [sys.executable, "-c", IN_A_TERMINAL, sys.executable, "-c", program]
    with pytest.raises(rlm_wire.WireError, match="terminal"):
        async with rlm_wire.connect(f"stdio:{shlex.join(command)}"):
            pass


async def test_b75_the_output_of_commands_has_no_carriage_returns(tmp_path: Path) -> None:
    async with (
        rlm_harness.Workspace.connect(local_worker_url(), cwd=str(tmp_path)) as workspace,
        workspace.agent() as agent,
    ):
        result = await agent.bash("printf 'a\\nb\\n'; test -t 1 || echo none")
        assert result.output.head == b"a\nb\nnone\n"
