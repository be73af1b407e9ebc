"""One child agent from its start to its end, in a task of its own.

It ends when it has answered (a persistent one stays, and goes on with what its parent tells it), when it fails, or when
its parent cancels it or ends. All below it end with it, in the workspace too, before it counts as ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from rlm_harness import prompts
from rlm_harness.agent import Agent, Outcome
from rlm_harness.events import AgentChanged, AgentSpawned
from rlm_harness.ledger.history import History
from rlm_harness.ledger.writer import Ledger, LedgerError, create_ledger, reopen_ledger
from rlm_harness.loss import WorkspaceAbandoned
from rlm_harness.model.interface import ModelError
from rlm_harness.secrets import UserError
from rlm_harness.supervisor.restoring import notice
from rlm_harness.supervisor.tree import Node
from rlm_harness.workspace import CLOSE_TIMEOUT, AgentTools
from rlm_wire.errors import CallError, SessionLost
from rlm_wire.methods.agents import AgentStatus
from rlm_wire.methods.sessions import CloseAgent

if TYPE_CHECKING:
    from rlm_harness.supervisor.supervisor import Supervisor

Work: TypeAlias = Callable[[], Awaitable[Outcome]]
"""A prompt to be worked on."""

TELL_TIMEOUT: Final = 1.0
"""Seconds that an agent which has ended may take to tell so: a terminal may be stuck."""

UNCONFIRMED: Final = "its end in the workspace was not confirmed in time"


async def live(supervisor: Supervisor, node: Node) -> None:
    """Work on the task of `node`, and on what its parent tells it. Raises nothing but what `emit` raises, and bugs.

    Cancellation, and that of `node.work`: ends it, and all below it, before this returns.
    """
    status: AgentStatus = "cancelled"
    try:
        assert node.parent is not None
        ledger = str(node.directory / "messages.jsonl")
        with node.work:
            await supervisor.emit(
                AgentSpawned(node.parent.in_events, node.name, node.depth, node.task, ledger, agent=node.id)
            )
            await supervisor.places.take(node.id, node.depth, node.parent.id)
            await _work(supervisor, node)
            status = "completed"
    except WorkspaceAbandoned:  # by whoever leaves at once
        pass
    except (ModelError, LedgerError, UserError, CallError, SessionLost) as error:
        status, node.error = "failed", str(error)
    except Exception as error:
        status, node.error = "failed", f"{type(error).__name__}: {error}"
        raise
    finally:
        await _conclude(supervisor, node, status)


async def _work(supervisor: Supervisor, node: Node) -> None:
    assert node.parent is not None
    tools: AgentTools | None = None
    failed = False
    try:
        async with _ledger(node) as (ledger, history), supervisor.tools(node, ledger) as tools:
            agent = supervisor.agent(node, tools, ledger)
            try:
                await _converse(supervisor, node, agent, await _first(supervisor, node, agent, history))
            except Exception:
                failed = True
                raise
            finally:
                node.open = False
                supervisor.watches.close(node)
                await end_all(node.children.values())
                await _write_meta(supervisor, node, agent, ledger, "failed" if failed else node.stop or "cancelled")
    except CallError as error:
        if tools is None or failed or node.stop is None:  # not only its end went wrong
            raise
        node.cleanup_error = str(error)
    finally:
        if tools is not None and tools.closed is None:
            node.cleanup_error = node.cleanup_error or UNCONFIRMED
        elif tools is not None and tools.closed is not None:
            supervisor.notices += tools.closed.notices


@asynccontextmanager
async def _ledger(node: Node) -> AsyncIterator[tuple[Ledger, History | None]]:
    """The ledger of `node`, and what an earlier process of the harness has left in it, if there was one."""
    assert node.parent is not None
    if node.begun:
        async with reopen_ledger(node.directory) as opened:
            yield opened
    else:
        async with create_ledger(node.parent.directory, node.id) as ledger:
            yield ledger, None


async def _first(supervisor: Supervisor, node: Node, agent: Agent, history: History | None) -> Work | None:
    """What there is to do first; None: nothing, until the parent has something to say."""
    if history is not None:
        recovered = await agent.restore(history, await notice(supervisor, node, history))
        if recovered.prompt is not None:
            return partial(agent.resume, recovered.prompt, history)
        if node.answer is not None or node.stop is not None:
            return None
    return partial(agent.prompt, node.task)


async def _converse(supervisor: Supervisor, node: Node, agent: Agent, work: Work | None) -> None:
    """`work`, and what comes later, until there is nothing more to do."""
    assert node.parent is not None
    while True:
        if work is not None:
            await supervisor.places.take(node.id, node.depth, node.parent.id)
            node.change("running")
            await _tell_change(supervisor, node)
            outcome = await work()
            node.answer, node.stop, node.told = outcome.answer or prompts.no_answer(outcome.stop), outcome.stop, None
        if supervisor.budgets.exhausted:
            await supervisor.mail.fail_instructions(node, "tree_budget_exhausted")
        if not node.instructions:
            if not node.persistent:
                return
            await _rest(supervisor, node)
        told = node.instructions.take()
        text = "\n\n".join(instruction.text for instruction in told)
        work = partial(agent.prompt, text, event_ids=[instruction.id for instruction in told])


async def _rest(supervisor: Supervisor, node: Node) -> None:
    """Be idle until the parent has something to say."""
    if node.told is None:
        await supervisor.mail.tell_outcome(node, "idle")
    if node.instructions:
        return
    node.change("idle")
    supervisor.places.give(node.id)
    await _tell_change(supervisor, node)
    while not node.instructions:
        await node.news.wait()


async def _tell_change(supervisor: Supervisor, node: Node) -> None:
    settled = node.settled_at is not None
    await supervisor.emit(
        AgentChanged(
            node.status,
            node.stop if settled else None,
            node.answer if settled else None,
            node.error,
            node.cancelled_by if node.status == "cancelled" else None,
            agent=node.id,
        )
    )


async def _conclude(supervisor: Supervisor, node: Node, status: AgentStatus) -> None:
    node.open = False
    try:
        with trio.CancelScope(shield=True):
            await supervisor.mail.fail_instructions(node, f"agent_{status}")
            await supervisor.mail.tell_outcome(node, status)
            node.change(status)
            supervisor.places.give(node.id)
            with trio.move_on_after(TELL_TIMEOUT):
                await _tell_change(supervisor, node)
    finally:
        node.ended.set()
        node.progress.notify()


async def end_all(nodes: Iterable[Node]) -> None:
    """Cancel these agents and all below them, and wait until they have ended. Cancellation: none."""
    nodes = list(nodes)
    for node in nodes:
        node.open = False
        node.work.cancel("its parent has ended")
    with trio.CancelScope(shield=True):
        for node in nodes:
            await node.ended.wait()


async def cancel(supervisor: Supervisor, node: Node) -> None:
    """End `node` and all below it; if it has ended, but not without an error, try to clean up again."""
    node.open = False
    if node.cancelled_by is None and node.parent is not None:
        node.cancelled_by = node.parent.request_id
    node.work.cancel("it was cancelled by its parent")
    await node.ended.wait()
    for ended in [node, *node.descendants()]:
        if ended.cleanup_error is not None:
            await _clean_up(supervisor, ended)


async def _clean_up(supervisor: Supervisor, node: Node) -> None:
    """End what is left of `node` in the workspace. Takes at most CLOSE_TIMEOUT and DEADLINE_GRACE."""
    try:
        await supervisor.workspace.peer.call(CloseAgent(node.id), timeout=CLOSE_TIMEOUT)
    except SessionLost as error:
        node.cleanup_error = str(error)
    except CallError as error:
        match error.code:
            case "not_found":
                node.cleanup_error = None
            case "deadline_exceeded":
                node.cleanup_error = UNCONFIRMED
            case _:
                node.cleanup_error = str(error)
    else:
        node.cleanup_error = None


async def _write_meta(supervisor: Supervisor, node: Node, agent: Agent, ledger: Ledger, status: str) -> None:
    meta = {
        "session": ledger.session,
        "parent": node.parent.id if node.parent is not None else None,
        "name": node.name,
        "status": status,
        "persistent": node.persistent,
        "depth": node.depth,
        "model": supervisor.model.name,
        "created_at": node.created_at,
        "turns": agent.turns,
        "usage": agent.usage,
    }
    try:
        await ledger.write_meta(meta)
    except LedgerError as error:
        node.cleanup_error = str(error)
