"""The agents of a session whose harness was killed, put back from their files.

Who there was stands in the ledgers, what came into their inboxes in the journals. Those that were at work go on; what
ended stays ended; of what the files do not say, nothing is assumed.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from rlm_harness import prompts
from rlm_harness.ledger.history import History
from rlm_harness.ledger.records import Resumed
from rlm_harness.ledger.sessions import AgentRecord, load_agents
from rlm_harness.recovery import Recovered, recover
from rlm_harness.supervisor.instructions import Instruction
from rlm_harness.supervisor.journal import read_journal
from rlm_harness.supervisor.tree import ENDED, Node
from rlm_harness.workspace import CLOSE_TIMEOUT
from rlm_wire.errors import CallError
from rlm_wire.methods.agents import AgentStatus
from rlm_wire.methods.inbox import InboxEvent
from rlm_wire.methods.jobs import ListJobs
from rlm_wire.methods.services import ListServices
from rlm_wire.methods.sessions import CloseAgent

if TYPE_CHECKING:
    from rlm_harness.supervisor.supervisor import Supervisor

QUIET = frozenset({"shell.completed"})


class _Past(msgspec.Struct):
    """What the files say of one agent."""

    record: AgentRecord
    recovered: Recovered | None
    journal: list[dict[str, Any]]
    children: dict[str, _Past]


async def restore(supervisor: Supervisor) -> None:
    """Put back all agents of the session, before its root agent goes on; those that were at work go on too.

    Raises LedgerError, SessionLost. Cancellation: some may have gone on already.
    """
    directory = supervisor.tree.root.directory
    past = await trio.to_thread.run_sync(lambda: _load(load_agents(directory)))
    _put_back(supervisor, supervisor.tree.root, past)
    for node in supervisor.tree.root.descendants():
        if node.settled_at is not None and node.told is None and node.parent is not None and node.parent.open:
            await supervisor.mail.tell_outcome(node, node.status)
    await _close_ended(supervisor)
    for node in supervisor.tree.root.children.values():
        _start(supervisor, node)


async def notice(supervisor: Supervisor, node: Node, history: History) -> Resumed:
    """What `node` is told of its interruption, and of what it has in the workspace and below it."""
    adopted = supervisor.workspace.adopted
    kept = adopted is not None and any(agent.agent == node.id for agent in adopted.agents)
    lines = [prompts.WORKSPACE_ADOPTED if kept else prompts.WORKSPACE_NEW]
    peer = supervisor.workspace.peer
    if kept:
        with suppress(CallError):
            lines += [f"Job {job.id}: {job.status}: {job.command[:200]}" for job in await peer.call(ListJobs(node.id))]
            services = await peer.call(ListServices(node.id))
            lines += [f"Service {service.name!r}: {service.status}" for service in services]
    for child in node.children.values():
        name = f" {child.name!r}" if child.name else ""
        lines.append(f"Agent {child.id}{name}: {child.status}{f' ({child.error})' if child.error else ''}")
    last = history.events[-1].get("timestamp", 0.0) if history.events else 0.0
    return Resumed(
        message=prompts.runtime_event("recovery", prompts.resumed(max(time.time() - last, 0.0), lines)),
        provenance={"kind": "recovery"},
        workspace="adopted" if kept else "new",
        torn=history.torn,
    )


def _load(record: AgentRecord) -> _Past:
    """Blocking."""
    recovered = recover(record.history) if record.history is not None else None
    journal = read_journal(record.directory)
    return _Past(record, recovered, journal, {child.id: _load(child) for child in record.children})


def _put_back(supervisor: Supervisor, node: Node, past: _Past) -> None:
    """`node` as it was, and those below it."""
    if past.recovered is not None:
        node.turns, node.usage = past.recovered.turns, past.recovered.usage
        supervisor.budgets.turns += node.turns
        supervisor.budgets.spend(node.usage)
    _fill_inbox(node, past.journal)
    history = past.record.history
    for spawn in history.of("sub_spawn") if history is not None else ():
        child = supervisor.tree.add(
            node, spawn["prompt"], spawn.get("name"), persistent=spawn.get("persistent", False), agent_id=spawn["child"]
        )
        child.created_at = spawn.get("timestamp", child.created_at)
        supervisor.budgets.subagents += 1
        theirs = past.children.get(child.id)
        _settle(node, child, theirs)
        if theirs is not None:
            _put_back(supervisor, child, theirs)


def _settle(parent: Node, child: Node, past: _Past | None) -> None:
    """The status of `child`, and what is known of its end."""
    history = past.record.history if past is not None else None
    child.begun = history is not None
    status = _status(child, past)
    if status not in ENDED and not parent.open:
        status, child.error = "cancelled", "its parent has ended"
    if history is not None and (ends := history.of("done")):
        replies = [event["message"].get("content") for event in history.of("assistant")]
        child.stop, child.answer = ends[-1]["stop"], next((text for text in reversed(replies) if text), None)
    told = [
        event.id
        for event in parent.inbox.entries(unread_only=False)
        if event.type == "agent.completed" and event.sender_id == child.id
    ]
    answers = len(history.of("done")) if history is not None else 0
    child.told = told[-1] if told and len(told) >= answers else None
    if status in ENDED:
        child.open = False
        child.ended.set()
    child.change(status)


def _status(child: Node, past: _Past | None) -> AgentStatus:
    if past is None or past.recovered is None:
        if past is not None and past.record.problem:
            child.error = past.record.problem
            return "failed"
        return "starting"
    match past.record.meta.status:
        case "":
            pass
        case "cancelled":
            return "cancelled"
        case "failed":
            child.error = "its last prompt had failed"
            return "failed"
        case _:
            return "completed"
    if past.recovered.prompt is not None:
        return "running"
    assert past.record.history is not None
    ends = past.record.history.of("done", "prompt_rollback")
    if not ends:
        return "starting"
    if ends[-1]["type"] == "prompt_rollback":
        child.error = "its last prompt had failed"
        return "failed"
    return "idle" if child.persistent else "completed"


def _fill_inbox(node: Node, journal: list[dict[str, Any]]) -> None:
    instructions: dict[str, Instruction] = {}
    for entry in journal:
        match entry:
            case {"content": _}:
                with suppress(msgspec.ValidationError):
                    event = msgspec.convert(entry, InboxEvent)
                    node.inbox.add(event, loud=event.type not in QUIET, required=True)
            case {"type": "read", "event_id": str(event_id)} if node.inbox.get(event_id) is not None:
                node.inbox.read(event_id)
            case {
                "type": "instruction" | "steer" as kind,
                "id": str(event_id),
                "text": str(text),
                "created_at": float(at),
            }:
                source = entry.get("source_request_id")
                instructions[event_id] = Instruction(
                    event_id, kind, text, at, source if isinstance(source, str) else None
                )
            case {"type": "instructions_delivered", "event_ids": list(event_ids)}:
                for event_id in event_ids:
                    instructions.pop(str(event_id), None)
            case {"type": "instruction_failed", "event_id": str(event_id)}:
                instructions.pop(event_id, None)
            case _:
                pass
    for instruction in instructions.values():
        node.instructions.add(instruction)


async def _close_ended(supervisor: Supervisor) -> None:
    """End in an adopted workspace what belongs to agents that do not go on."""
    adopted = supervisor.workspace.adopted
    for kept in adopted.agents if adopted is not None else ():
        node = supervisor.tree.find(kept.agent)
        if node is None or node.status in ENDED:
            with suppress(CallError):
                closed = await supervisor.workspace.peer.call(CloseAgent(kept.agent), timeout=CLOSE_TIMEOUT)
                supervisor.notices += closed.notices


def _start(supervisor: Supervisor, node: Node) -> None:
    """Let `node` go on, and those below it, unless they have ended."""
    if node.status not in ENDED:
        supervisor.start(node)
    for child in node.children.values():
        _start(supervisor, child)
