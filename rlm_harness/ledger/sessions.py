"""The sessions on disk: which there are, how each stands, and the agents of one. Blocking: for threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

import msgspec

from rlm_harness.events import Usage
from rlm_harness.ledger.files import LEDGER, META, is_in_use, read
from rlm_harness.ledger.history import History, LedgerDamaged, Remains, Timestamp, read_history, read_remains
from rlm_harness.recovery import spent
from rlm_harness.secrets import UserError

CHILDREN: Final = "sub-*"

SHOWN_TASK: Final = 200
"""Characters of a task's first line in a list."""

HEAD: Final = 256 * 1024
"""Bytes of a ledger that are read to list it: the system prompt and the task."""

SHOWN_NAMES: Final = 5
"""Sessions that are named where a prefix fits several."""


class Meta(msgspec.Struct, frozen=True):
    """What meta.json says, as far as it is looked at; empty if there is none, or it makes no sense."""

    status: str = ""
    model: str = ""
    workspace: str = ""
    worker: str = ""
    turns: int | None = None
    usage: Usage | None = None


class AgentRecord(msgspec.Struct, frozen=True):
    """One agent of a session. Sizes are in bytes, times in seconds.

    `problem` says why its `history` is not there; without one it has not begun. `remains` are those of a damaged one.
    `status` is how its last prompt ended, `running`, `not begun`, or `interrupted`: its harness ended without an end of
    the prompt.
    """

    id: str
    name: str | None
    directory: Path
    depth: int
    meta: Meta
    status: str
    history: History | None
    remains: Remains | None
    problem: str
    children: list[AgentRecord]

    @property
    def readable(self) -> History | Remains | None:
        """What there is to be looked at."""
        return self.history or self.remains

    @property
    def events(self) -> list[dict[str, Any]]:
        """All its records that can be read."""
        return self.readable.events if self.readable is not None else []

    @property
    def usage(self) -> Usage:
        """Tokens of this agent alone."""
        if self.history is None and self.meta.usage is not None:
            return self.meta.usage
        return spent(self.events)

    @property
    def turns(self) -> int:
        """Replies of its model."""
        if self.history is None and self.meta.turns is not None:
            return self.meta.turns
        return sum(event["type"] == "assistant" for event in self.events)

    @property
    def times(self) -> tuple[float, float]:
        """Of its first and last record, Unix time."""
        events = self.events
        return (events[0].get("timestamp", 0.0), events[-1].get("timestamp", 0.0)) if events else (0.0, 0.0)

    @property
    def torn(self) -> int:
        """Bytes of an unfinished record at the end."""
        return self.readable.torn if self.readable is not None else 0

    @property
    def size(self) -> int:
        """Bytes of its ledger."""
        return self.readable.size + self.readable.torn if self.readable is not None else 0

    def descendants(self) -> Iterator[AgentRecord]:
        """This agent and all below it, each behind its parent."""
        yield self
        for child in self.children:
            yield from child.descendants()


class SessionRecord(msgspec.Struct, frozen=True):
    """A session in a list. `turns` and tokens are those of all its agents, `size` is that of all its files."""

    session: str
    started: float
    status: str
    model: str
    agents: int
    turns: int
    prompt_tokens: int
    completion_tokens: int
    size: int
    task: str


def find_session(parent: Path, prefix: str) -> Path:
    """The directory of the one session below `parent` whose id begins with `prefix`.

    Raises UserError if there is none, or more than one.
    """
    found = [path for path in _sessions(parent) if path.name.startswith(prefix)] if prefix else []
    exact = [path for path in found if path.name == prefix]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if not found:
        raise UserError(f"there is no session {prefix!r} in {parent} (rlm-harness sessions lists them)")
    names = ", ".join(path.name for path in found[:SHOWN_NAMES]) + (", …" if len(found) > SHOWN_NAMES else "")
    raise UserError(f"{prefix!r} fits {len(found)} sessions: {names}")


def list_sessions(parent: Path) -> list[SessionRecord]:
    """All sessions below `parent`, the newest first. Those that cannot be read are there too, and say so."""
    return sorted(map(summary_of, _sessions(parent)), key=lambda session: (-session.started, session.session))


def summary_of(directory: Path) -> SessionRecord:
    """One session as it is listed. Of one that has ended in order only the beginning is read: ledgers may be long."""
    meta, problem = _read_meta(directory), ""
    usage, turns, status = meta.usage, meta.turns, meta.status
    if usage is None or turns is None or _may_run(directory):
        root = load_agents(directory)
        agents = list(root.descendants())
        turns, usage = sum(agent.turns for agent in agents), sum((agent.usage for agent in agents), Usage())
        status, problem = root.status, root.problem
    first = _first_records(directory / LEDGER)
    asked = next((_words(record.message.get("content")) for record in first if record.type == "user"), "")
    return SessionRecord(
        session=directory.name,
        started=first[0].timestamp if first else directory.stat().st_mtime,
        status="damaged" if problem else status,
        model=meta.model,
        agents=1 + sum(1 for _ in directory.rglob(CHILDREN)),
        turns=turns,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        size=sum(map(_size, directory.rglob("*"))),
        task=next(iter(asked.splitlines()), "")[:SHOWN_TASK],
    )


def load_agents(directory: Path, depth: int = 0, name: str | None = None) -> AgentRecord:
    """The agent whose ledger is in `directory`, and all below it, in the order in which they were started.

    What cannot be read says so in its `problem`. `name` is what its parent called it.
    """
    meta, history, remains, problem = _read_meta(directory), None, None, ""
    try:
        try:
            history = read_history(directory)
        except LedgerDamaged as error:
            problem, remains = str(error), read_remains(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        problem = f"cannot read {directory / LEDGER}: {error.strerror}"
    readable = history or remains
    events = readable.events if readable is not None else None
    names = {event["child"]: event.get("name") for event in events or () if event["type"] == "sub_spawn"}
    order = {child: place for place, child in enumerate(names)}
    children = sorted(
        (path for path in directory.glob(CHILDREN) if path.is_dir()),
        key=lambda path: (order.get(path.name, len(order)), path.name),
    )
    return AgentRecord(
        id=directory.name if depth else "root",
        name=name,
        directory=directory,
        depth=depth,
        meta=meta,
        status="running" if _may_run(directory) else _status(meta, events),
        history=history,
        remains=remains,
        problem=problem,
        children=[load_agents(child, depth + 1, names.get(child.name)) for child in children],
    )


def as_json(root: AgentRecord) -> dict[str, Any]:
    """A session with all records of its agents, each agent behind its parent."""
    return {
        "session": root.directory.name,
        "status": root.status,
        "model": root.meta.model,
        "workspace": root.meta.workspace,
        "agents": [
            {
                "id": agent.id,
                "parent": parent,
                "name": agent.name,
                "depth": agent.depth,
                "status": agent.status,
                "turns": agent.turns,
                "usage": agent.usage,
                "started": agent.times[0],
                "duration": agent.times[1] - agent.times[0],
                "size": agent.size,
                "ledger": str(agent.directory / LEDGER),
                "problem": agent.problem,
                "gaps": agent.remains.gaps if agent.remains is not None else [],
                "torn": agent.torn,
                "records": agent.events,
            }
            for agent, parent in _with_parents(root, None)
        ],
    }


def _with_parents(agent: AgentRecord, parent: str | None) -> Iterator[tuple[AgentRecord, str | None]]:
    yield agent, parent
    for child in agent.children:
        yield from _with_parents(child, agent.id)


def _sessions(parent: Path) -> list[Path]:
    return [path.parent for path in parent.glob(f"*/{LEDGER}")] if parent.is_dir() else []


def _words(content: Any) -> str:
    """What is said in the content of a message; pictures say nothing."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except OSError:  # replaced or removed meanwhile
        return 0
    return status.st_size if S_ISREG(status.st_mode) else 0


def _may_run(directory: Path) -> bool:
    try:
        return is_in_use(directory)
    except OSError:
        return False


def _status(meta: Meta, events: list[dict[str, Any]] | None) -> str:
    if meta.status not in ("", "running"):
        return meta.status
    if events is None:
        return "not begun"
    for record in reversed(events):
        match record["type"]:
            case "done":
                return str(record.get("stop"))
            case "user" | "assistant" | "prompt_rollback":
                break
    return "interrupted"


def _read_meta(directory: Path) -> Meta:
    try:
        return msgspec.json.decode(read(directory / META), type=Meta)
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return Meta()


class _First(msgspec.Struct):
    type: str
    timestamp: Timestamp = 0.0
    message: dict[str, Any] = {}


def _first_records(path: Path) -> list[_First]:
    """The records that stand wholly in the first HEAD bytes, but for those that make no sense."""
    try:
        return list(_decoded(read(path, HEAD).split(b"\n")[:-1]))
    except OSError:
        return []


def _decoded(lines: Iterable[bytes]) -> Iterator[_First]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=_First)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
