"""Every text that the harness itself says to the model, and nothing else."""

from __future__ import annotations

import msgspec

from rlm_harness.model.interface import Message

EMPTY_REPLY = (
    "Your last reply had neither text nor a tool call. Go on with the task: call a tool, or give your final answer."
)
PLAN_REPLY = (
    "Your last reply announces a next step but does not take it, and a reply without a tool call ends the turn. "
    "Take that step now with a tool call; if the task is done, give your final answer."
)
ONE_CALL = "Error: only one tool call per turn is allowed; none of these was run. Send one of them again, alone."


class Surroundings(msgspec.Struct, frozen=True):
    """What the system prompt says of the workspace."""

    cwd: str
    platform: str
    python: str


def system_prompt(surroundings: Surroundings) -> str:
    return f"""\
You work on a task in a workspace, through tools; nobody answers questions meanwhile.

Workspace: {surroundings.cwd} ({surroundings.platform}, Python {surroundings.python})

* `ipython` runs Python in one persistent kernel: variables, imports and background tasks stay between cells; \
top-level `await`, `!command` and `%%bash` work. `bash` runs each command in a fresh shell in the workspace directory.
* In cells, `rlm` is there without an import: `rlm.shell.run` for commands that may go on in the background, \
`rlm.service` for servers, `rlm.history()` for this conversation, `print(rlm.__doc__)` for all of it.
* Look before you change: read the files concerned, and run what exists (tests, linters) to see the starting point.
* `edit` replaces text that occurs exactly once; give enough lines around it to make it so.
* One tool call per reply. Long output is shortened in the middle.
* Check your work by running it. When the task is done, reply with a short account of it and no tool call."""


def runtime_event(kind: str, text: str, **attributes: str) -> Message:
    """A user message that the harness made: wrapped, so that the model can tell it from the human."""
    pairs = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return {"role": "user", "content": f'<runtime_event kind="{kind}"{pairs}>\n{text}\n</runtime_event>'}
