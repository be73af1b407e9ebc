"""What the turn loop does with a reply: a pure function of the reply and of what was nudged before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from rlm_harness import prompts
from rlm_harness.model.interface import Reply, ToolCall
from rlm_harness.rendering import MAX_RESULT
from rlm_harness.tools import EXEC_TIMEOUT, TOOLS, ArgumentError, Arguments, parse_arguments

MAX_EMPTY_NUDGES = 2
"""Per prompt: a model that stays silent after two reminders has nothing to say."""

MAX_PLAN_NUDGES = 1
"""Per prompt: what looks like a plan may be the answer, and the second time it is taken for one."""

SHORT_REPLY = 300
"""Characters below which a reply that opens like a plan is taken for one."""

_PLAN_OPENER = re.compile(
    r"(?:let me|let's|i'll|i will|i'm going to|i am going to|now i|next,? i|first,? i)\b", re.IGNORECASE
)

Stop: TypeAlias = Literal["answered", "length", "empty"]


class Nudges(msgspec.Struct, frozen=True):
    """How often each kind of reminder was given for this prompt."""

    empty: int = 0
    plan: int = 0


class Finish(msgspec.Struct, frozen=True):
    """The prompt ends, with the reply's text as its answer."""

    stop: Stop


class Nudge(msgspec.Struct, frozen=True):
    """Remind the model of what a reply must have; `nudges` is the count from now on."""

    kind: Literal["empty_reply", "plan_reply"]
    text: str
    nudges: Nudges


class Refuse(msgspec.Struct, frozen=True):
    """Run nothing; each of the calls gets `text` as its result."""

    calls: list[ToolCall]
    text: str


class Run(msgspec.Struct, frozen=True):
    call: ToolCall
    arguments: Arguments


class RunInOrder(msgspec.Struct, frozen=True):
    """One after the other; a call that cannot be run does not keep those behind it from being run."""

    steps: list[Run | Refuse]


Step: TypeAlias = Finish | Nudge | Refuse | Run | RunInOrder


class ToolPolicy(msgspec.Struct, frozen=True):
    """Which tools there are, and whether a reply may ask for `several` calls, which are run in order.

    `timeout` is the seconds a command or cell gets, unless the model asks for another time; `max_result` the bytes of a
    result that the model sees whole. `pictures`: the model can see, and is shown what its cells show.
    """

    tools: Sequence[str] = TOOLS
    several: bool = False
    timeout: int = EXEC_TIMEOUT
    max_result: int = MAX_RESULT
    pictures: bool = False


ONE_OF_ALL: Final = ToolPolicy()


def next_step(reply: Reply, nudges: Nudges, policy: ToolPolicy = ONE_OF_ALL) -> Step:
    if len(reply.tool_calls) > 1:
        if not policy.several:
            return Refuse(reply.tool_calls, prompts.ONE_CALL)
        return RunInOrder([_run_or_refuse(call, policy.tools) for call in reply.tool_calls])
    if reply.tool_calls:
        return _run_or_refuse(reply.tool_calls[0], policy.tools)
    if reply.finish_reason == "length":
        return Finish("length")
    if not reply.text.strip():
        if nudges.empty < MAX_EMPTY_NUDGES:
            return Nudge("empty_reply", prompts.EMPTY_REPLY, Nudges(nudges.empty + 1, nudges.plan))
        return Finish("empty")
    if looks_like_plan(reply.text) and nudges.plan < MAX_PLAN_NUDGES:
        return Nudge("plan_reply", prompts.PLAN_REPLY, Nudges(nudges.empty, nudges.plan + 1))
    return Finish("answered")


def _run_or_refuse(call: ToolCall, tools: Sequence[str]) -> Run | Refuse:
    try:
        return Run(call, parse_arguments(call, tools))
    except ArgumentError as error:
        return Refuse([call], f"Error: {error}")


def looks_like_plan(text: str) -> bool:
    """It announces a step instead of taking it: it ends in a colon, or is short and opens like a plan."""
    stripped = text.strip()
    return stripped.endswith(":") or (len(stripped) < SHORT_REPLY and _PLAN_OPENER.match(stripped) is not None)
