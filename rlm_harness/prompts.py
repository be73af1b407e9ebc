"""Every text that the harness itself says to the model, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rlm_harness.model.interface import Message
from rlm_wire.methods.skills import Skills

EMPTY_REPLY = (
    "Your last reply had neither text nor a tool call. Go on with the task: call a tool, or give your final answer."
)
PLAN_REPLY = (
    "Your last reply announces a next step but does not take it, and a reply without a tool call ends the turn. "
    "Take that step now with a tool call; if the task is done, give your final answer."
)
ONE_CALL = "Error: only one tool call per turn is allowed; none of these was run. Send one of them again, alone."

UNKNOWN_OUTCOME = """\
[outcome unknown: the harness was killed while this call was under way. It may not have begun, or have done a part of \
its work, or all of it; what still ran was stopped. Look before you do it again.]"""
WORKSPACE_ADOPTED = """\
The workspace was not touched by it: your kernel has its variables, and jobs and services run on. A cell that was \
running has been interrupted."""
WORKSPACE_NEW = """\
The workspace had ended meanwhile, and was opened anew: files are as they were left; the variables of your kernel, \
jobs and services are gone."""
SUMMARIZE = """\
Your context is nearly full. Write a summary now, from which you can go on with the task; it will take the place of \
this conversation. Plain text, no tool call. Say: what was asked, in its own words where they matter; what is done, \
and how you know; what you found out (paths, names, values, errors, exact where it counts); what is left, and the next \
step; which variables, jobs, services and files of yours matter."""

PICTURES = "What your cell has shown:"
WAIT_EVENTS = "Events are available: see rlm.inbox.list()."
WAIT_TIMED_OUT = "No events came within the time."


SKILL_LINE = 160
"""Characters of a skill's description in the system prompt; there may be many skills."""


DELEGATION = """\
Give work away where its parts do not depend on each other, or where it would fill this conversation with things of \
which only the result is needed. An agent knows nothing but its task: say what it is for, where things are, what to \
leave alone, and what to answer with. Start those that can run side by side before you wait for any; \
`rlm.watch.agent(agent)` and `agent.history()` show what one does, and `agent.steer(text)` corrects it. Check what \
they answer against the workspace before you build on it."""


class Guidance(msgspec.Struct, frozen=True):
    """What agents are told beside what there is.

    `role` stands for the first line of the system prompt, and `append` behind it. `append_below` is for agents below
    the root agent, `append_leaves` for those of them that may not start any; where one is None, the one before it
    holds. `delegation`: those that may start agents are told how to go about it.
    """

    role: str | None = None
    append: str | None = None
    append_below: str | None = None
    append_leaves: str | None = None
    delegation: bool = False

    def applied(self, prompt: str, *, root: bool, may_spawn: bool) -> str:
        """`prompt`, which is the system prompt, with all that."""
        if self.role is not None:
            prompt = f"{self.role}\n{prompt.partition(chr(10))[2]}"
        below = self.append if self.append_below is None else self.append_below
        leaves = below if self.append_leaves is None else self.append_leaves
        append = self.append if root else below if may_spawn else leaves
        return "\n\n".join(filter(None, [prompt, DELEGATION if self.delegation and may_spawn else "", append]))


class Surroundings(msgspec.Struct, frozen=True):
    """What the system prompt says of the workspace.

    `agents`: cells may start agents; `parent`: this agent was started by another; `skills`: what cells have.
    """

    cwd: str
    platform: str
    python: str
    agents: bool = False
    parent: bool = False
    guidance: Guidance = Guidance()
    skills: Skills = Skills()
    allow_git: bool = True


def system_prompt(surroundings: Surroundings, tools: Sequence[str], *, several: bool) -> str:
    """What an agent with these `tools` is told first; `several`: a reply may have more than one call."""
    has = set(tools)
    lines = [
        "You work on a task in a workspace, through tools; nobody answers questions meanwhile.",
        "",
        f"Workspace: {surroundings.cwd} ({surroundings.platform}, Python {surroundings.python})",
        "",
    ]
    if "ipython" in has:
        lines.append(
            "* `ipython` runs Python in one persistent kernel: variables, imports and background tasks stay between"
            " cells; top-level `await`, `!command` and `%%bash` work."
        )
    if "bash" in has:
        lines.append("* `bash` runs each command in a fresh shell in the workspace directory.")
    if "ipython" in has:
        lines.append(
            "* In cells, `rlm` is there without an import: `rlm.shell.run` for commands that may go on in the"
            " background, `rlm.service` for servers, `rlm.history()` for this conversation, `print(rlm.__doc__)` for"
            " all of it."
        )
        lines += _skills(surroundings.skills)
    if surroundings.agents:
        lines.append(
            "* `agent = rlm.agent.spawn(task)` starts an agent with the same tools in the same workspace, which knows"
            " nothing but its task; `agent.result()` waits for its answer, and several work side by side:"
            " `for result in rlm.agent.collect(agents)`."
        )
    if surroundings.parent:
        lines.append("* Another agent has given you this task, and gets your last reply.")
        if "ipython" in has:
            lines[-1] += " What it should know before: `rlm.agent.send_to_parent(text)`."
    if "wait" in has:
        lines.append("* `wait` is for when all that is left to do is to hear from agents, jobs or watches.")
    if not surroundings.allow_git:
        lines.append("* git is for the history of what is checked out; other branches, tags and remotes are refused.")
    lines.append(
        "* Look before you change: read the files concerned, and run what exists (tests, linters) to see the starting"
        " point."
    )
    if "edit" in has:
        lines.append("* `edit` replaces text that occurs exactly once; give enough lines around it to make it so.")
    lines += [
        f"* {'Several tool calls in one reply run in order' if several else 'One tool call per reply'}. Long output is"
        " shortened in the middle.",
        "* Check your work by running it. When the task is done, reply with a short account of it and no tool call.",
    ]
    guided = surroundings.guidance.applied
    return guided("\n".join(lines), root=not surroundings.parent, may_spawn=surroundings.agents)


def _skills(skills: Skills) -> list[str]:
    if not (skills.local or skills.remote):
        return []
    names = ", ".join(f"`{name}`" for name in [*skills.local, *(skill.name for skill in skills.remote)])
    text = f"* Cells have these functions, too; `help(name)` tells how they are called: {names}."
    about = [f"  * `{skill.name}`: {_first_line(skill.description)}" for skill in skills.remote if skill.description]
    return [text, *about]


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= SKILL_LINE else f"{line[:SKILL_LINE]}..."


def agent_input(text: str, *, sender: str, kind: str) -> Message:
    """A user message that another agent wrote, the parent."""
    head = f'<agent_input from="parent" agent_id="{sender}" kind="{kind}">'
    return {"role": "user", "content": f"{head}\n{text}\n</agent_input>"}


def no_answer(stop: str) -> str:
    """What a parent gets from a child that has said nothing before its prompt came to an end in that way."""
    why = {
        "max_turns": "all turns were used up",
        "max_tokens": "all tokens were used up",
        "token_budget": "its own tokens were used up",
        "length": "its reply was cut at the model's token limit",
        "empty": "it had nothing to say",
        "compaction_failed": "its conversation had become too long",
    }
    return f"[no answer: {why.get(stop, stop)}]"


def unread_notice(count: int) -> str:
    events = "1 unread event" if count == 1 else f"{count} unread events"
    return f"You have {events}: rlm.inbox.list() lists them, rlm.inbox.read(event_id) gives one."


def runtime_event(kind: str, text: str, **attributes: str) -> Message:
    """A user message that the harness made: wrapped, so that the model can tell it from the human."""
    pairs = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return {"role": "user", "content": f'<runtime_event kind="{kind}"{pairs}>\n{text}\n</runtime_event>'}


def summary_message(summary: str, window: int, uncovered: int) -> Message:
    """What stands in a new window for the one before it, which was number `window`.

    `uncovered` is how many of its last messages the summary does not cover.
    """
    missing = (
        f"\nIt does not cover the last {uncovered} messages, which were too long: "
        f"see `h.windows[{window}].messages[-{uncovered}:]`, a part at a time."
        if uncovered
        else ""
    )
    text = f"""\
The conversation so far had become too long. Your summary of it:

{summary}

Go on from there. Files, jobs, services and the variables of your kernel are as they were. The whole conversation is \
kept: in a cell, `h = await rlm.history()`, then `h.user_messages()` for what was asked, word for word, and \
`h.windows[{window}].messages` for what you saw before this.{missing}"""
    return runtime_event("compaction", text)


def resumed(seconds: float, lines: Sequence[str]) -> str:
    """What an agent is told whose harness was killed, `seconds` after the last record; `lines` say what is known."""
    known = "\n".join(lines)
    return f"""\
The harness had ended without warning, and goes on now with this conversation as it was recorded; the last record is \
{seconds:.0f} s old.
{known}
What happened after the last record is not known. Look at the state of things before you go on."""
