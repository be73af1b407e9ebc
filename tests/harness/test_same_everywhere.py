"""What a model sees does not depend on where its worker is: the same script, over each kind of link."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness.actors import Actors, cell, says, tool

import rlm_wire
from rlm_harness.ledger.writer import create_ledger
from rlm_harness.supervisor.calls import AgentCalls
from rlm_harness.supervisor.supervisor import open_supervisor
from rlm_harness.workspace import Workspace, local_worker_url

TOKEN = "a token of the links"

SCRIPT = [
    tool("bash", command="echo hi; echo there >&2; exit 3"),
    tool("bash", command="true"),
    tool("bash", command="printf 'a\\377\\000b\\342\\202'; printf 'caf\\303\\251\\n'"),
    tool("bash", command="seq 400000"),
    tool("bash", command="yes '世界 wörld' | head -c 30001"),
    tool("bash", command="head -c 20000 /dev/zero | tr '\\0' x"),
    tool("bash", command="head -c 20001 /dev/zero | tr '\\0' x"),
    tool("bash", command="kill -9 $$"),
    tool("bash", command=" "),
    tool("edit", path="file", old_str="one", new_str="two"),
    tool("edit", path="file", old_str="one", new_str="two"),
    tool("edit", path="nowhere", old_str="one", new_str="two"),
    tool("fetch", url="http://127.0.0.1:1/"),
    cell("x = 20 + 1\nprint('out')\nx * 2"),
    cell("import sys; print('err', file=sys.stderr); '世界' * 10_000"),
    cell("print(chr(10).join(map(str, range(400_000))))"),
    cell("def f(): return 1 / 0\nf()"),
    cell("x +"),
    cell("%who\n!echo from a shell"),
    tool("ipython", code="import time; time.sleep(1000)", timeout=1),
    cell("print(rlm.agent.spawn('child').result().answer)\nrlm.shell.run('echo job').text"),
    cell("rlm.call('no.such')"),
    cell("import os; os._exit(7)"),
    cell("x"),
    tool("nothing"),
    says("done"),
]


@contextmanager
def worker(*options: str) -> Iterator[str]:
    """The URL of a worker that was started with these options."""
    command = [sys.executable, "-m", "rlm_worker", "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").strip()
        process.terminate()


async def conversation(url: str, directory: Path, ledgers: Path, events: Any) -> list[Any]:
    """What the model of the script sees in the end."""
    (directory / "file").write_text("one\n")
    model, service = Actors(go=list(SCRIPT), child=[says("a child's answer")]), rlm_wire.Service()
    calls = AgentCalls(service)
    async with (
        Workspace.connect(url, TOKEN, str(directory), service=service) as workspace,
        create_ledger(ledgers) as ledger,
        open_supervisor(workspace, model, events.emit, ledger, calls) as (_, agent),
    ):
        await agent.prompt("go")
    return model.shown["go"][-1][1:]


async def test_a_model_sees_the_same_byte_for_byte_over_each_kind_of_link(tmp_path: Path, events: Any) -> None:
    directory, token = tmp_path / "w", tmp_path / "token"
    directory.mkdir()
    token.write_text(TOKEN)
    token.chmod(0o600)
    secret = ("--token-file", str(token))
    here = await conversation(local_worker_url(), directory, tmp_path / "ledgers", events)
    results = [message["content"] for message in here if message["role"] == "tool"]
    assert len(results) == len(SCRIPT) - 1
    assert results[0] == "hi\nthere\n[exit code 3]"
    with ExitStack() as stack:
        for option in ("--tcp", "--tls"):
            url = stack.enter_context(worker(option, "127.0.0.1:0", *secret))
            there = await conversation(url, directory, tmp_path / "ledgers", events)
            for ours, theirs in zip(here, there, strict=True):
                assert theirs == ours, option
