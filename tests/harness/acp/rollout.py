"""Rollouts of the verifiers framework, run by its own interpreter; what became of them is printed as JSON. No test.

`rollout.py BASE_URL HARNESS [WORDS]`: the model is at BASE_URL; HARNESS is the framework's configuration of it, JSON;
WORDS are said while the agent works.
"""

import asyncio
import json
import socket
import sys
from pathlib import Path

from verifiers.v1.agent import Agent
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.retries import RetryConfig
from verifiers.v1.harnesses.rlm.harness import RLMHarness
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.task import Task, TaskData
from verifiers.v1.utils.decorators import reward

base_url, chosen, words = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
RLMHarness.NEEDS_CONTAINER = False  # a rule of its own, for machines with containers


class Graded(Task):
    @reward
    async def wrote_what_was_asked(self, trace, runtime) -> float:
        """A daemon writes this only when the harness has gone: so it must outlive it."""
        await runtime.run(["sh", "-c", "touch graded; until [ -e answer ]; do sleep 0.05; done"], {})
        return float((await runtime.read("answer")).decode())


class Stopped(Task):
    @reward
    async def nothing_of_it_runs(self, runtime) -> float:
        """The command had begun, and all of it has ended: whatever is left of it holds the lock."""
        waited = await runtime.run(["sh", "-c", "test -e began && flock lock true"], {})
        return float(waited.exit_code == 0)


class Unreachable(InterceptionServer):
    """Has a port to itself, and does not listen there."""

    async def start(self) -> None:
        held = self.stack.enter_context(socket.socket())
        held.bind(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{held.getsockname()[1]}"


def agent(interception: InterceptionServer | None = None) -> Agent:
    harness = chosen | {"builtin_tools": ["ipython", "bash"], "max_depth": 1}
    client = {"type": "eval", "base_url": base_url, "api_key_var": "MODEL_KEY"}
    config = {"harness": harness, "runtime": {"type": "subprocess"}, "model": "m", "client": client}
    return Agent(AgentConfig(**config, retries=RetryConfig(max_retries=0)), interception=interception)


def told(trace) -> dict:
    return {
        "id": trace.id,
        "ok": trace.ok,
        "place": trace.agent.runtime.id,
        "stop": trace.stop_condition,
        "reward": trace.reward,
        "errors": [error.type for error in trace.errors],
        "messages": [error.message[:2000] for error in trace.errors],
        "metrics": dict(trace.metrics),
        "edges": sorted(link.type for node in trace.nodes for link in getattr(node, "semantic_parents", [])),
    }


async def whole() -> dict:
    """Tools, two children, something said meanwhile, a second turn; graded by what a daemon wrote."""
    async with agent().interaction(Graded(TaskData(prompt="whole"))) as interaction:
        first = asyncio.create_task(interaction.turn())
        receipt = {}
        if words:
            while not interaction.trace.num_turns and not first.done():  # noqa: ASYNC110  there is nothing else to wait for
                await asyncio.sleep(0.02)
            receipt = await interaction.steer(words[0], message_id="m1")
        replies = [(await first).last_reply, (await interaction.turn("again")).last_reply]
    secret = interaction._run._secret
    return told(interaction.trace) | {"receipt": receipt, "replies": replies, "secret": secret}


async def cancelled() -> dict:
    """The turn is cancelled once a command runs."""
    async with agent().interaction(Stopped(TaskData(prompt="cancelled"))) as interaction:
        turn = asyncio.create_task(interaction.turn())
        began = Path(interaction.trace.agent.runtime.id, "began")
        while not began.exists() and not turn.done():  # noqa: ASYNC110  there is nothing else to wait for
            await asyncio.sleep(0.02)
        turn.cancel()
        await asyncio.wait([turn])
    return told(interaction.trace) | {"cancelled": turn.cancelled()}


async def failing() -> dict:
    """The framework's own endpoint is gone."""
    async with Unreachable() as interception:
        return told(await agent(interception).run(Task(TaskData(prompt="failing"))))


async def main() -> None:
    results = await asyncio.gather(whole(), cancelled(), failing())
    print(json.dumps(dict(zip(("whole", "cancelled", "failing"), results, strict=True))))


asyncio.run(main())
