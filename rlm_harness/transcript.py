"""A session's records as text for people. Pure.

Nothing in it is to be trusted by a terminal: models and tools wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from rlm_harness.display import printable
from rlm_harness.events import Usage
from rlm_harness.ledger.files import LEDGER
from rlm_harness.ledger.history import Gap
from rlm_harness.ledger.sessions import AgentRecord, SessionRecord

SHOWN_LINES: Final = 24
"""Lines of one message that are shown unless all is asked for."""

SHOWN_TEXT: Final = 8000
"""Characters of one message, likewise."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB")


def render_list(sessions: Iterable[SessionRecord]) -> str:
    """A table, a session a line."""
    rows = [("SESSION", "STARTED", "STATUS", "MODEL", "TURNS", "TOKENS", "SIZE", "TASK")]
    for session in sessions:
        agents = f" (+{session.agents - 1})" if session.agents > 1 else ""
        rows.append(
            (
                session.session + agents,
                _date(session.started),
                session.status,
                session.model,
                str(session.turns),
                str(session.prompt_tokens + session.completion_tokens),
                size(session.size),
                session.task,
            )
        )
    clean = [[" ".join(printable(cell).split()) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in clean) for column in range(len(clean[0]) - 1)]
    return "".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip() + "\n"
        for row in clean
    )


def render_session(root: AgentRecord, *, full: bool) -> Iterator[str]:
    """The transcript, piece by piece: head, tree of agents, then the records of each agent."""
    started, ended = root.times
    yield f"session {root.directory.name}: {root.status}\n"
    about = [root.meta.model, root.meta.workspace, root.meta.worker]
    yield "".join(f"{printable(' · '.join(filter(None, about)))}\n" for _ in [0] if any(about))
    yield f"started {_date(started)}, {_duration(ended - started)} · {root.directory}\n\n"
    for agent in root.descendants():
        yield _in_tree(agent)
    for agent in root.descendants():
        yield f"\n── {_name(agent)} {'─' * 40}\n"
        yield from _records(agent, full=full)


def _in_tree(agent: AgentRecord) -> str:
    started, ended = agent.times
    usage = agent.usage
    figures = [
        agent.status,
        *(["damaged"] if agent.problem else []),
        f"{agent.turns} turn{'s' * (agent.turns != 1)}",
        _tokens(usage),
        _duration(ended - started),
        size(agent.size),
    ]
    branch = f"{'   ' * (agent.depth - 1)}└─ " if agent.depth else ""
    return f"{branch}{_name(agent)}: {' · '.join(figures)}\n"


def _name(agent: AgentRecord) -> str:
    return printable(f"{agent.id} {agent.name!r}" if agent.name else agent.id)


def _records(agent: AgentRecord, *, full: bool) -> Iterator[str]:
    readable = agent.readable
    gaps = agent.remains.gaps if agent.remains is not None else []
    if not gaps and (agent.problem or readable is None):
        yield f"! {printable(agent.problem)}\n" if agent.problem else "(it has not begun)\n"
    if readable is None:
        return
    start, shown = agent.times[0], 0
    for gap in gaps:
        yield from _events(readable.events[shown : gap.place], start, full=full)
        yield f"! {_gap(agent, gap)}\n"
        shown = gap.place
    yield from _events(readable.events[shown:], start, full=full)
    if readable.torn and agent.status != "running":
        yield f"! {readable.torn} bytes of an unfinished record at the end, which its writer was killed over\n"


def _events(events: Iterable[dict[str, Any]], start: float, *, full: bool) -> Iterator[str]:
    for event in events:
        if text := render_record(event, full=full):
            head, _, body = text.partition("\n")
            yield f"[{_duration(event.get('timestamp', start) - start)}] {printable(head)}\n"
            if body:
                yield f"{printable(body)}\n"


def _gap(agent: AgentRecord, gap: Gap) -> str:
    """Where lines are left out, and why, in one line."""
    path, problem = agent.directory / LEDGER, " ".join(gap.problem.split())
    if gap.first == gap.last:
        return printable(f"line {gap.first} of {path} is damaged: {problem}; it is left out here")
    return printable(f"lines {gap.first} to {gap.last} of {path} are damaged: {problem}; they are left out here")


def render_record(event: dict[str, Any], *, full: bool) -> str:
    """One record: a line that says what it is, and its text below. Empty if a reader would learn nothing from it."""
    message = event.get("message") or {}
    text = _text(message)
    kind = event["type"]
    match kind:
        case "system":
            return f"system\n{_cut(text, full)}" if full else f"system ({len(text)} characters)"
        case "assistant" | "discarded_assistant":
            return _assistant(event, message, full)
        case "tool_result":
            tool, duration = event.get("tool"), _duration(event.get("duration", 0.0))
            return f"{tool} in {duration}, {size(len(text.encode('utf-8', 'replace')))}\n{_cut(text, full)}"
        case "context_message" if event.get("source_message_index") is not None:
            return f"the model sees {len(text)} characters of it"
        case "context_message" | "done":
            return "" if kind == "context_message" else f"done: {event.get('stop')}"
        case "compaction":
            return f"compaction ({event.get('reason')}): window {event.get('window')}\n{_cut(event['summary'], full)}"
        case "context_window":
            return f"window {event.get('window')} ({event.get('reason')})" if event.get("reason") != "start" else ""
        case "prompt_rollback":
            return f"rolled back: {event.get('reason')} after {event.get('attempted_turns')} turns"
        case "sub_spawn":
            name = f" {event['name']!r}" if event.get("name") else ""
            return f"started {event.get('child')}{name}\n{_cut(str(event.get('prompt')), full)}"
        case _:
            return f"{kind.replace('_', ' ')}\n{_cut(text, full)}" if text else kind.replace("_", " ")


def _assistant(event: dict[str, Any], message: dict[str, Any], full: bool) -> str:
    usage = event.get("usage", {})
    tokens = _tokens(Usage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)))
    parts = [f"turn {event.get('turn')}", _duration(event.get("duration", 0.0)), tokens]
    what = "assistant" if event["type"] == "assistant" else "assistant, cut off and put aside"
    lines = [f"{what} ({', '.join(parts)})"]
    if text := _text(message):
        lines.append(_cut(text, full))
    for call in message.get("tool_calls", ()):
        lines.append(f"  ▶ {call['function']['name']}")
        lines.append(_cut(_arguments(call["function"]["arguments"]), full, "    │ "))
    return "\n".join(lines)


def _arguments(text: str) -> str:
    """A call's arguments: the one string that most have as it is, others as JSON."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(arguments, dict) and len(arguments) == 1:
        (value,) = arguments.values()
        if isinstance(value, str):
            return value
    return json.dumps(arguments, ensure_ascii=False, indent=1)


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text") or f"[{part.get('type')}]" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _cut(text: str, full: bool, indent: str = "  ") -> str:
    lines = text.splitlines()
    shown = lines if full else text[:SHOWN_TEXT].splitlines()[:SHOWN_LINES]
    more = len(lines) - len(shown)
    rest = [f"[{more} more lines: --full shows them]"] if more else []
    if not more and not full and len(text) > SHOWN_TEXT:
        rest = [f"[{len(text) - SHOWN_TEXT} more characters: --full shows them]"]
    return "\n".join(indent + line for line in shown + rest)


def _tokens(usage: Usage) -> str:
    return f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"


def _date(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{max(seconds, 0.0):.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"


def size(count: float) -> str:
    """Bytes, as people read them."""
    for unit in _UNITS[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"
