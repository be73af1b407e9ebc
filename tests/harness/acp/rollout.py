"""Rollouts of the verifiers framework, run by its own interpreter; what became of them is printed as JSON. No test.

`rollout.py BASE_URL HARNESS [WORDS]`: the model is at BASE_URL; HARNESS is the framework's configuration of it, JSON;
WORDS are said while the agent works.
"""

import asyncio
import json
import sys

from verifiers.v1.agent import Agent
from verifiers.v1.configs.agent import AgentConfig, TimeoutConfig
from verifiers.v1.configs.retries import RetryConfig
from verifiers.v1.harnesses.rlm.harness import RLMHarness
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


def agent(timeout: TimeoutConfig = TimeoutConfig()) -> Agent:  # noqa: B008
    harness = chosen | {"builtin_tools": ["ipython", "bash"], "max_depth": 1}
    client = {"type": "eval", "base_url": base_url, "api_key_var": "MODEL_KEY"}
    config = {"harness": harness, "runtime": {"type": "subprocess"}, "model": "m", "client": client}
    return Agent(AgentConfig(**config, timeout=timeout, retries=RetryConfig(max_retries=0)))


def told(trace) -> dict:
    return {
        "ok": trace.ok,
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
            while not interaction.trace.num_turns:  # noqa: ASYNC110  there is nothing else to wait for
                await asyncio.sleep(0.02)
            receipt = await interaction.steer(words[0], message_id="m1")
        replies = [(await first).last_reply, (await interaction.turn("again")).last_reply]
    return told(interaction.trace) | {"receipt": receipt, "replies": replies}


async def cancelled() -> dict:
    """If something is said, the time is up while a command runs; else nothing is in a hurry."""
    timeout = TimeoutConfig(rollout=8 if words else None)
    return told(await agent(timeout=timeout).run(Task(TaskData(prompt="cancelled"))))


async def failing() -> dict:
    """The endpoint fails, and goes on failing."""
    return told(await agent().run(Task(TaskData(prompt="failing"))))


async def main() -> None:
    results = await asyncio.gather(whole(), cancelled(), failing())
    print(json.dumps(dict(zip(("whole", "cancelled", "failing"), results, strict=True))))


asyncio.run(main())
