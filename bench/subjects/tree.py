"""A harness with a tree of agents, in a process of its own: `python -m bench.subjects.tree CHILDREN`.

Its model answers at once. Prints JSON: the seconds until all children have made their first model call, and the MiB
that the harness has when all are idle.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import trio

import rlm_wire
from rlm_harness.events import Emit, Event
from rlm_harness.ledger.writer import create_ledger
from rlm_harness.model.interface import Message, Reply, ToolCall, ToolChoice, ToolSchema
from rlm_harness.supervisor.calls import AgentCalls
from rlm_harness.supervisor.policy import Policy
from rlm_harness.supervisor.supervisor import open_supervisor
from rlm_harness.workspace import Workspace, local_worker_url

Play = Callable[[str], Reply]


class InstantModel:
    """Answers what `play` makes of the agent's task."""

    name = "instant"

    def __init__(self, play: Play) -> None:
        self._play = play
        self.asked: list[float] = []

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        emit: Emit,
        tool_choice: ToolChoice = "auto",
    ) -> Reply:
        await trio.lowlevel.checkpoint()
        self.asked.append(perf_counter())
        return self._play(messages[1]["content"])


def call(tool: str, **arguments: str) -> Reply:
    return Reply("", [ToolCall("c", tool, json.dumps(arguments))], "tool_calls")


async def prompt(play: Play) -> tuple[list[float], int]:
    """Have a root agent play, with children if it starts some: when the model was asked, and the KiB at its end."""
    model, service = InstantModel(play), rlm_wire.Service()
    calls = AgentCalls(service)
    with tempfile.TemporaryDirectory() as directory:
        async with (
            Workspace.connect(local_worker_url(), service=service) as workspace,
            create_ledger(Path(directory)) as ledger,
            open_supervisor(workspace, model, _ignore, ledger, calls, policy=Policy(max_model_calls=64)) as (_, agent),
        ):
            await agent.prompt("root")
            return model.asked, _resident()


async def _ignore(event: Event) -> None:
    pass


def _resident() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0])


def children(count: int) -> dict[str, float]:
    """Start persistent children, and wait until each has answered."""
    code = (
        f"agents = [rlm.agent.spawn('child', persistent=True) for _ in range({count})]\n"
        "for result in rlm.agent.collect(agents): pass"
    )
    root = iter([call("ipython", code="1"), call("ipython", code=code), Reply("done")])
    asked, resident = trio.run(prompt, lambda task: next(root) if task == "root" else Reply("done"))
    return {"seconds": asked[-2] - asked[1], "mib": resident / 1024}


if __name__ == "__main__":
    print(json.dumps(children(int(sys.argv[1]))))
