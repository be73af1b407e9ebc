"""What cells call: `rlm.agent` and `rlm.inbox`. Each call is made by the agent whose cell it comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

import rlm_wire
from rlm_harness.callbacks import calling_agent
from rlm_harness.events import AnswerRead, MessageRead
from rlm_harness.ledger.writer import LedgerError
from rlm_harness.supervisor import lifecycle
from rlm_harness.supervisor.instructions import Kind
from rlm_harness.supervisor.mail import check_message
from rlm_harness.supervisor.tree import Node
from rlm_wire.errors import CallError
from rlm_wire.methods import agents, inbox
from rlm_wire.methods.ledger import LedgerChunk
from rlm_wire.methods.watches import WatchInfo

if TYPE_CHECKING:
    from rlm_harness.supervisor.supervisor import Supervisor

HISTORY_CHUNK: Final = 1 << 20
"""Bytes of a ledger in one answer."""


class AgentCalls:
    """The handlers. To be registered before there is a workspace, and so before there is a supervisor to ask."""

    def __init__(self, service: rlm_wire.Service) -> None:
        """Register them at `service`."""
        self._supervisor: Supervisor | None = None
        service.handle(agents.SpawnAgent)(self._spawn)
        service.handle(agents.GetAgent)(self._get)
        service.handle(agents.ListAgents)(self._list)
        service.handle(agents.GetAgentInfo)(self._info)
        service.handle(agents.WaitForAgent)(self._wait)
        service.handle(agents.GetAgentResult)(self._result)
        service.handle(agents.CollectAgents)(self._collect)
        service.handle(agents.CancelAgent)(self._cancel)
        service.handle(agents.SendToAgent)(self._send)
        service.handle(agents.SteerAgent)(self._steer)
        service.handle(agents.SendToParent)(self._send_to_parent)
        service.handle(agents.ReadAgentHistory)(self._history)
        service.handle(agents.WatchAgent)(self._watch)
        service.handle(agents.GetAgentWatch)(self._get_watch)
        service.handle(agents.ListAgentWatches)(self._list_watches)
        service.handle(agents.CancelAgentWatch)(self._cancel_watch)
        service.handle(inbox.ListInbox)(self._list_inbox)
        service.handle(inbox.ReadInbox)(self._read_inbox)

    @contextmanager
    def answered_by(self, supervisor: Supervisor) -> Iterator[None]:
        """While the block runs, `supervisor` is who is asked."""
        self._supervisor = supervisor
        try:
            yield
        finally:
            self._supervisor = None

    def _asked(self) -> tuple[Supervisor, Node]:
        """Who is asked, and who asks."""
        node = self._supervisor.tree.find(calling_agent()) if self._supervisor is not None else None
        if self._supervisor is None or node is None:
            raise CallError("unavailable", "there is no supervisor for this agent")
        return self._supervisor, node

    def _child(self, name_or_id: str) -> tuple[Supervisor, Node]:
        """Who is asked, and the child of the caller that is meant."""
        supervisor, node = self._asked()
        child = node.children.get(name_or_id) or node.names.get(name_or_id)
        if child is None:
            raise CallError("not_found", "agent is not a direct child of the caller")
        return supervisor, child

    async def _spawn(self, request: agents.SpawnAgent) -> agents.AgentHandle:
        supervisor, node = self._asked()
        try:
            child = await supervisor.spawn(node, request.task, request.name, persistent=request.persistent)
        except LedgerError as error:
            raise CallError("internal", str(error)) from error
        return agents.AgentHandle(child.id, str(child.directory))

    def _get(self, request: agents.GetAgent) -> agents.AgentHandle:
        _, child = self._child(request.agent)
        return agents.AgentHandle(child.id, str(child.directory))

    def _list(self, request: agents.ListAgents) -> list[agents.AgentInfo]:
        _, node = self._asked()
        return [child.info() for child in (node.descendants() if request.recursive else node.children.values())]

    def _info(self, request: agents.GetAgentInfo) -> agents.AgentInfo:
        return self._child(request.agent)[1].info()

    async def _wait(self, request: agents.WaitForAgent) -> agents.AgentInfo:
        _, child = self._child(request.agent)
        await _settled(child, request.timeout)
        return child.info()

    async def _result(self, request: agents.GetAgentResult) -> agents.AgentResult:
        supervisor, child = self._child(request.agent)
        await _settled(child, request.yield_after)
        await _note_result(supervisor, child)
        if child.status == "failed":
            raise CallError("failed_precondition", f"agent failed: {child.error}")
        if child.status == "cancelled":
            raise CallError("cancelled", "agent cancelled")
        return child.result()

    async def _collect(self, request: agents.CollectAgents) -> agents.AgentResult | None:
        supervisor, _ = self._asked()
        children = [self._child(agent)[1] for agent in request.agents]
        with trio.move_on_after(request.timeout):
            while all(child.settled_at is None for child in children):
                await supervisor.tree.settled.wait()
        settled = [child for child in children if child.settled_at is not None]
        if not settled:
            return None
        first = min(settled, key=lambda child: child.settled_at or 0.0)
        await _note_result(supervisor, first)
        return first.result()

    async def _cancel(self, request: agents.CancelAgent) -> agents.AgentInfo:
        supervisor, child = self._child(request.agent)
        await lifecycle.cancel(supervisor, child)
        await _note_result(supervisor, child)
        return child.info()

    async def _send(self, request: agents.SendToAgent) -> str:
        return await self._instruct(request.agent, "instruction", request.message)

    async def _steer(self, request: agents.SteerAgent) -> str:
        return await self._instruct(request.agent, "steer", request.message)

    async def _instruct(self, agent: str, kind: Kind, message: str) -> str:
        supervisor, child = self._child(agent)
        if not child.open:
            raise CallError("failed_precondition", "agent is no longer active")
        if supervisor.budgets.exhausted:
            raise CallError("resource_exhausted", "cannot send instruction: tree budget exhausted")
        return await supervisor.mail.instruct(child, kind, message)

    async def _send_to_parent(self, request: agents.SendToParent) -> str:
        supervisor, node = self._asked()
        if node.parent is None:
            raise CallError("failed_precondition", "root agent has no parent")
        if not node.parent.open:
            raise CallError("failed_precondition", "parent is no longer active")
        check_message(request.message)
        content = {"agent_id": node.id, "name": node.name, "text": request.message}
        return await supervisor.mail.publish(
            node.parent, "agent.message", node.id, content, required=False, source=node.request_id
        )

    async def _history(self, request: agents.ReadAgentHistory) -> LedgerChunk:
        _, child = self._child(request.agent)
        data = await trio.to_thread.run_sync(_read, child.directory / "messages.jsonl", request.start)
        return LedgerChunk(request.start, data)

    def _watch(self, request: agents.WatchAgent) -> WatchInfo:
        supervisor, child = self._child(request.agent)
        assert child.parent is not None
        return supervisor.watches.add(child.parent, child, request.every_turns, request.every_tokens)

    def _get_watch(self, request: agents.GetAgentWatch) -> WatchInfo:
        supervisor, node = self._asked()
        return supervisor.watches.get(node, request.watch).info()

    def _list_watches(self, request: agents.ListAgentWatches) -> list[WatchInfo]:
        supervisor, node = self._asked()
        return supervisor.watches.list(node)

    def _cancel_watch(self, request: agents.CancelAgentWatch) -> WatchInfo:
        supervisor, node = self._asked()
        watch = supervisor.watches.get(node, request.watch)
        supervisor.watches.cancel(watch)
        return watch.info()

    def _list_inbox(self, request: inbox.ListInbox) -> list[inbox.InboxEntry]:
        _, node = self._asked()
        return list(node.inbox.entries(unread_only=request.unread_only))

    async def _read_inbox(self, request: inbox.ReadInbox) -> inbox.InboxEvent:
        supervisor, node = self._asked()
        return await _read_event(supervisor, node, request.event_id)


async def _read_event(supervisor: Supervisor, node: Node, event_id: str) -> inbox.InboxEvent:
    """The event, which `node` has read with that. Raises CallError."""
    event = await supervisor.mail.mark_read(node, event_id)
    match event.type:
        case "agent.completed":
            status = str(event.content.get("status"))
            await supervisor.emit(AnswerRead(status, event.source_request_id, agent=event.sender_id))
        case "agent.message":
            await supervisor.emit_as(node)(MessageRead(event.sender_id, event.source_request_id))
    return event


async def _settled(child: Node, timeout: float) -> None:
    """Until `child` has answered or ended, `timeout` seconds at most."""
    with trio.move_on_after(timeout):
        while child.settled_at is None:
            await child.news.wait()


async def _note_result(supervisor: Supervisor, child: Node) -> None:
    """The parent knows the outcome of `child`, if there is one: the event that tells of it has nothing new to it."""
    parent = child.parent
    if child.settled_at is not None and parent is not None and parent.inbox.get(child.told or "") is not None:
        await _read_event(supervisor, parent, child.told or "")


def _read(path: Path, start: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # it has only just been started
        return b""
    except OSError as error:
        raise CallError("unavailable", f"the ledger cannot be read: {error.strerror}") from error
    try:
        return os.pread(descriptor, HISTORY_CHUNK, start)
    finally:
        os.close(descriptor)
