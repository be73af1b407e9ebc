"""The supervisor of one session: its agents, what they share, and the nursery that owns their tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from functools import partial

import msgspec
import trio

from rlm_harness.agent import Agent
from rlm_harness.compaction import CompactionPolicy
from rlm_harness.decisions import ToolPolicy
from rlm_harness.events import Emit, Event, Usage
from rlm_harness.ledger.records import SubSpawn
from rlm_harness.ledger.writer import Ledger, LedgerError
from rlm_harness.model.interface import Model
from rlm_harness.prompts import Surroundings
from rlm_harness.supervisor.budgets import Budgets
from rlm_harness.supervisor.calls import AgentCalls
from rlm_harness.supervisor.capacity import ModelSlots, Places
from rlm_harness.supervisor.desk import Desk, SlottedModel
from rlm_harness.supervisor.groups import one_of_a_kind
from rlm_harness.supervisor.happenings import follow_workspace
from rlm_harness.supervisor.lifecycle import end_all, live
from rlm_harness.supervisor.mail import Mail
from rlm_harness.supervisor.policy import Policy
from rlm_harness.supervisor.tree import ROOT, Node, Tree
from rlm_harness.supervisor.watching import AgentWatches
from rlm_harness.workspace import AgentTools, Workspace
from rlm_wire.errors import CallError
from rlm_wire.methods.names import check_name
from rlm_wire.methods.sessions import Quotas


class Supervisor:
    """Made by `open_supervisor`."""

    def __init__(
        self,
        workspace: Workspace,
        model: Model,
        emit: Emit,
        ledger: Ledger,
        nursery: trio.Nursery,
        *,
        policy: Policy,
        tool_policy: ToolPolicy,
        compaction: CompactionPolicy,
    ) -> None:
        self.workspace = workspace
        self.model = model
        self.emit = emit
        self.policy = policy
        self.tree = Tree(ledger.directory, "")
        self.budgets = Budgets(policy)
        self.places = Places(policy.max_working)
        self.mail = Mail()
        self.watches = AgentWatches(self.mail, nursery, Quotas())
        self.notices: list[str] = []
        """What ended agents have left running."""
        self._slots = ModelSlots(policy.max_model_calls)
        self._tool_policy = tool_policy
        self._compaction = compaction
        self._nursery = nursery
        self._ledgers = {ROOT: ledger}

    @property
    def usage(self) -> Usage:
        """Tokens of all agents."""
        return sum((node.usage for node in self.tree.root.descendants()), self.tree.root.usage)

    def tools(self, node: Node, ledger: Ledger) -> AbstractAsyncContextManager[AgentTools]:
        """The tools of `node`, in the workspace all agents share."""
        policy = self.policy
        return self.workspace.agent(node.id, ledger=ledger, skills=policy.skills, allow_git=policy.allow_git)

    def agent(self, node: Node, tools: AgentTools, ledger: Ledger) -> Agent:
        """The turn loop of `node`."""
        self._ledgers[node.id] = ledger
        info, policy = self.workspace.info, self._tool_policy
        has_cells = "ipython" in policy.tools
        if has_cells:
            policy = msgspec.structs.replace(policy, tools=(*policy.tools, "wait"))
        may_spawn = has_cells and node.depth < self.policy.max_depth
        return Agent(
            SlottedModel(self.model, self._slots, self.budgets, node.depth),
            tools,
            ledger,
            self.emit_as(node),
            surroundings=Surroundings(
                info.cwd,
                info.platform,
                info.python,
                agents=may_spawn,
                parent=node.parent is not None,
                skills=self.policy.skills,
                allow_git=self.policy.allow_git,
                guidance=self.policy.guidance,
            ),
            compaction=self._compaction,
            tool_policy=policy,
            supervision=Desk(node, self.budgets, self.mail, self.emit_as(node), has_inbox=has_cells),
        )

    async def spawn(self, parent: Node, task: str, name: str | None, *, persistent: bool) -> Node:
        """Start a child of `parent`. Raises CallError, LedgerError. Cancellation: none."""
        self._check_spawn(parent, name, persistent=persistent)
        self.budgets.subagents += 1
        node = self.tree.add(parent, task, name, persistent=persistent)
        spawned = SubSpawn(child=node.id, child_dir=node.id, prompt=task, name=name, persistent=persistent)
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(partial(node.directory.mkdir, mode=0o700))
                await self._ledgers[parent.id].append(spawned)  # whose end waits for the child's
            except OSError as error:
                node.fail_to_start(f"cannot create {node.directory}: {error.strerror}")
                raise CallError("internal", node.error or "") from error
            except LedgerError as error:
                node.fail_to_start(str(error))
                raise
        self.start(node)
        return node

    def start(self, node: Node) -> None:
        """Let `node` live; not in the scope of the cell that has asked for it, which ends before."""
        Context().run(self._nursery.start_soon, live, self, node)

    def _check_spawn(self, parent: Node, name: str | None, *, persistent: bool) -> None:
        if not parent.open:
            raise CallError("failed_precondition", "agent is no longer active")
        if name is not None:
            check_name(name, "an agent's")
        if name is not None and (name in parent.names or name in parent.children):
            raise CallError("invalid_argument", f"agent name {name[:100]!r} is already used")
        if parent.depth >= self.policy.max_depth:
            raise CallError("failed_precondition", f"depth limit reached: agents go {self.policy.max_depth} deep here")
        if not self.budgets.subagents_left:
            raise CallError("resource_exhausted", "subagent call limit reached")
        match self.budgets.exhausted:
            case "max_turns":
                raise CallError("resource_exhausted", "turn budget reached")
            case "max_tokens":
                raise CallError("resource_exhausted", "token budget reached")
        if persistent and self.tree.persistent() >= self.policy.max_persistent:
            raise CallError("resource_exhausted", "persistent agent limit reached: cancel one first")

    def emit_as(self, node: Node) -> Callable[[Event], Awaitable[None]]:
        """Tells events that come from `node`."""
        if node.id == ROOT:
            return self.emit

        async def emit(event: Event) -> None:
            await self.emit(msgspec.structs.replace(event, agent=node.id))

        return emit


@asynccontextmanager
async def open_supervisor(
    workspace: Workspace,
    model: Model,
    emit: Emit,
    ledger: Ledger,
    calls: AgentCalls,
    *,
    policy: Policy | None = None,
    tool_policy: ToolPolicy | None = None,
    compaction: CompactionPolicy | None = None,
) -> AsyncIterator[tuple[Supervisor, Agent]]:
    """The supervisor of a session in `workspace`, and its root agent, whose ledger `ledger` is.

    `calls` answers the cells, and is part of the service that the workspace was connected with. All agents have the
    same `model`, tools and `emit`, whose events say which agent they come from. What `emit` raises ends everything.
    Leaving the block, or its cancellation, ends all agents, and waits until they have stopped in the workspace too.
    """
    with one_of_a_kind():
        async with trio.open_nursery() as nursery:
            supervisor = Supervisor(
                workspace,
                model,
                emit,
                ledger,
                nursery,
                policy=policy or Policy(),
                tool_policy=tool_policy or ToolPolicy(),
                compaction=compaction or CompactionPolicy(),
            )
            root = supervisor.tree.root
            root.change("running")
            nursery.start_soon(follow_workspace, supervisor)
            async with supervisor.tools(root, ledger) as tools:
                with calls.answered_by(supervisor):
                    try:
                        yield supervisor, supervisor.agent(root, tools, ledger)
                    finally:
                        root.open = False
                        await end_all(root.children.values())
            if tools.closed is not None:
                supervisor.notices += tools.closed.notices
            nursery.cancel_scope.cancel()
