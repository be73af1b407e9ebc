"""The two faces of the event stream: a person's terminal, and one JSON object a line.

What goes out is decided purely; `write_to` is the only I/O.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import trio

from rlm_harness.agent_tree import AgentTree, SeenAgent, first_line, fit
from rlm_harness.events import (
    AgentChanged,
    AgentSpawned,
    AnswerRead,
    AssistantReplied,
    Cancelling,
    Compacted,
    Compacting,
    Event,
    MessageRead,
    Nudged,
    Reconnected,
    Reconnecting,
    Retrying,
    SessionEnded,
    SessionStarted,
    SummaryReplied,
    TextDelta,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    TurnStarted,
    Usage,
    Verdict,
)
from rlm_harness.panel import Panel

SHOWN_OUTPUT = 64 * 1024
"""Characters of one tool's live output that a terminal shows: what floods by can be read in the ledger."""

SHOWN_LINES = 24
"""Lines of a cell, an edit or a note: enough to recognise it."""

PANEL_ROWS = 12
"""Lines about agents at work."""

REFRESH = 1.0
"""Seconds after which the times of agents at work are drawn anew."""

_STOPS = {
    "length": "the model's reply was cut at its token limit",
    "max_turns": "no answer before the last turn",
    "empty": "the model had nothing to say",
    "compaction_failed": "the conversation became too long",
    "refused": "the endpoint refused the request",
    "workspace_lost": "the workspace was lost",
    "error": "the session could not go on",
}
"""How a session without an answer ended; what to do about it is in its message, which goes to stderr."""

_COMPACTIONS = {
    "threshold": "the model's window fills up",
    "length": "the end of the model's window cut the reply off",
    "overflow": "the conversation is too long for the model",
}

_UNPRINTABLE = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]"  # colours and cursor movement
    "|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?"  # titles, links, the clipboard
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # whatever else a terminal would act upon, a carriage return too
)


_LINES = re.compile(r"[^\n]*\n|[^\n]+")


def printable(text: str) -> str:
    """`text` without anything that a terminal would obey: what tools and models print is not to be trusted with it."""
    return _UNPRINTABLE.sub("", text)


def write_to(descriptor: int) -> Callable[[str], Awaitable[None]]:
    """A function that writes text to `descriptor`, in a thread: a terminal that is stopped must not stop the loop.

    It raises OSError, BrokenPipeError if nobody reads any more. Cancellation: gives up waiting; text that was begun may
    still go out, in order.
    """
    order = threading.Lock()

    def write(data: bytes) -> None:
        with order:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]

    async def write_text(text: str) -> None:
        await trio.to_thread.run_sync(partial(write, text.encode("utf-8", "replace")), abandon_on_cancel=True)

    return write_text


def json_line(event: Event, at: float) -> str:
    """`event` as one line of JSON; `at` is in seconds since the start."""
    fields: dict[str, Any] = {"at": round(at, 6)} | msgspec.to_builtins(event)
    return msgspec.json.encode(fields).decode() + "\n"


class JsonDisplay:
    """One event a line, for programs."""

    def __init__(self, write: Callable[[str], Awaitable[None]]) -> None:
        self._write = write
        self._started = time.monotonic()

    async def show(self, event: Event) -> None:
        await self._write(json_line(event, time.monotonic() - self._started))

    async def keep_fresh(self) -> None:
        """There is nothing to be drawn anew."""


class TerminalDisplay:
    """Turns as they happen, for people; where `size` tells columns and rows, with the agents at work below."""

    def __init__(
        self,
        write: Callable[[str], Awaitable[None]],
        *,
        colour: bool,
        size: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._write = write
        self._size = size
        self._view = TerminalView(colour=colour)
        self._panel = Panel(colour=colour)
        self._order = trio.Lock()  # of what several agents have to show

    async def show(self, event: Event) -> None:
        async with self._order:
            await self._draw(self._view.render(event))

    async def keep_fresh(self) -> None:
        """Draw what changes with time alone, until cancelled."""
        while self._size is not None:
            await trio.sleep(REFRESH)
            async with self._order:
                await self._draw("")

    async def _draw(self, text: str) -> None:
        if self._size is not None:
            columns, rows = self._size()
            lines = [fit(printable(line), columns) for line in self._view.agents(min(PANEL_ROWS, rows - 2))]
            text = self._panel.compose(text, lines, open_line=self._view.line_open)
        if text:
            await self._write(text)


class TerminalView:
    """Events in, text out; remembers where the cursor is, how much output of a tool it let through, and the agents."""

    def __init__(self, *, colour: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.line_open = False
        """The cursor is within a line."""
        self._colour = colour
        self._clock = clock
        self._shown = 0
        self._tree = AgentTree()

    def agents(self, limit: int) -> list[str]:
        """The agents that have not ended, in `limit` lines at most."""
        return self._tree.lines(self._clock(), limit)

    def render(self, event: Event) -> str:
        child = self._tree.take(event, self._clock())
        if child is not None:
            return self._child(child, event)
        match event:
            case SessionStarted():
                return self._block(f"model {event.model} · workspace {event.workspace} · {event.worker}", "2")
            case TurnStarted(turn):
                return self._block(f"\n── turn {turn} " + "─" * 40, "1")
            case TextDelta(text):
                return self._flow(text, "")
            case AssistantReplied():
                return self._block(_cost(event), "2")
            case Retrying(reason, delay, attempt):
                return self._block(f"! {reason}; attempt {attempt} in {delay:.1f} s", "33")
            case Nudged(kind, _):
                return self._block(f"! reminded the model ({kind.replace('_', ' ')})", "33")
            case Compacting(reason):
                return self._block(f"! {_COMPACTIONS.get(reason, reason)}: asking the model for a summary", "33")
            case Compacted():
                return self._block(_indented(event.summary, "  │ "), "2") + self._block(_compacted(event), "33")
            case Reconnecting(reason):
                return self._block(f"! no connection to the worker, trying again: {reason}", "33")
            case Reconnected():
                return self._block("! connected to the worker again", "33")
            case Cancelling():
                return self._block("! cancelling the turn; Ctrl-C again leaves at once", "33")
            case ToolStarted():
                self._shown = 0
                return self._block(f"▶ {event.tool}", "1;36") + self._block(_request(event), "36")
            case ToolOutput(_, text):
                return self._output(text)
            case ToolFinished():
                return self._finish(event)
            case SessionEnded():
                return self._end(event)
            case Verdict(passed, findings):
                head = self._block("\n" + ("PASSED" if passed else "FAILED"), "1;32" if passed else "1;31")
                return head + self._block("\n".join(f"  {finding}" for finding in findings), "")
            case AgentSpawned() | AgentChanged() | AnswerRead() | MessageRead() | SummaryReplied():  # of nobody's
                return ""

    def _child(self, agent: SeenAgent, event: Event) -> str:
        """Children work side by side, so no more than where each begins and ends; the rest is in their ledgers."""
        indent = "  " * (agent.depth - 1)
        match event:
            case AgentSpawned():
                return self._block(f"{indent}+ {agent.label}: {first_line(event.task)}", "35")
            case AgentChanged(status) if status != "running":
                said = first_line(event.error or event.answer or "")
                how = f"{indent}- {agent.label} {status} · {agent.cost(self._clock())}"
                return self._block(f"{how}: {said}" if said else how, "31" if status == "failed" else "35")
            case _:
                return ""

    def _finish(self, event: ToolFinished) -> str:
        good = event.status == "ok" and not event.exit_code
        how = f"exit {event.exit_code}" if event.exit_code else event.status.replace("_", " ")
        note = self._block(_indented(event.note, "  "), "") if event.note else ""
        mark = f"{'✓' if good else '✗'} {event.tool} {how} in {_duration(event.duration)}"
        return note + self._block(mark, "32" if good else "31")

    def _end(self, event: SessionEnded) -> str:
        tokens = event.usage.prompt_tokens + event.usage.completion_tokens
        cost = f" · {tokens} tokens" if tokens else ""
        turns = f"{event.turns} turn{'s' * (event.turns != 1)}"
        summary = f"\n── {_STOPS.get(event.stop, event.stop)} · {turns} · {_duration(event.duration)}{cost}"
        notices = "".join(f"\n! {notice}" for notice in event.notices)
        return self._block(summary, "1") + self._block(f"ledger: {event.ledger}{notices}", "")

    def _output(self, text: str) -> str:
        room = SHOWN_OUTPUT - self._shown
        self._shown += len(text)
        if room < 0:
            return ""
        cut = "" if len(text) <= room else self._block("  [more output is not shown here]", "2")
        return self._flow(text[:room], "  ") + cut

    def _flow(self, text: str, indent: str) -> str:
        """Text that goes on where the last of it ended, each line begun with `indent`."""
        shown = []
        for line in _LINES.findall(printable(text)):
            shown.append(line if self.line_open else indent + line)
            self.line_open = not line.endswith("\n")
        return "".join(shown)

    def _block(self, text: str, style: str) -> str:
        """Whole lines, never glued to an open one."""
        opening = "\n" if self.line_open else ""
        self.line_open = False
        clean = printable(text)
        return f"{opening}\x1b[{style}m{clean}\x1b[0m\n" if self._colour and style else f"{opening}{clean}\n"


def _request(event: ToolStarted) -> str:
    """What the model asked for, shortened to what a reader needs to recognise."""
    arguments = event.arguments
    match event.tool:
        case "ipython":
            return _indented(str(arguments.get("code", "")), "  │ ")
        case "bash":
            return _indented(str(arguments.get("command", "")), "  │ ")
        case "edit":
            old = _indented(str(arguments.get("old_str", "")), "  - ")
            return f"  {arguments.get('path')}\n{old}\n{_indented(str(arguments.get('new_str', '')), '  + ')}"
        case _:
            return _indented(str(arguments.get("url", arguments)), "  ")


def _indented(text: str, indent: str) -> str:
    lines = text.splitlines()
    shown = [indent + line for line in lines[:SHOWN_LINES]]
    if len(lines) > SHOWN_LINES:
        shown.append(f"{indent}[{len(lines) - SHOWN_LINES} more lines]")
    return "\n".join(shown)


def _cost(event: AssistantReplied) -> str:
    tokens = f", {event.usage.prompt_tokens} + {event.usage.completion_tokens} tokens" if event.usage != Usage() else ""
    return f"({_duration(event.duration)}{tokens})"


def _compacted(event: Compacted) -> str:
    tokens = event.usage.prompt_tokens + event.usage.completion_tokens
    cost = f", {tokens} tokens" if tokens else ""
    return f"! goes on from this summary ({_duration(event.duration)}{cost}); the ledger has it all"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
