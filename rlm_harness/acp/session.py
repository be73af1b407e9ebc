"""One session of a client: prompts in the order in which they come, in a workspace that the first of them opens.

A task of its own holds the session open. Cancelling concerns the prompts that are there at that moment, whether they
have begun or not, and none that come later.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import trio

from rlm_harness.acp import edges, snapshot
from rlm_harness.acp.failures import Failure, failure_of
from rlm_harness.acp.jsonrpc import INVALID_REQUEST, ClientLost, RpcError
from rlm_harness.acp.opening import Order, open_order
from rlm_harness.acp.prompts import behind
from rlm_harness.acp.steering import Steering
from rlm_harness.acp.updates import Update, Updates
from rlm_harness.agent import Outcome
from rlm_harness.events import Event, SessionStarted, Usage
from rlm_harness.ledger.writer import LedgerError
from rlm_harness.model.interface import Content, ModelError
from rlm_harness.opening import Agents
from rlm_harness.supervisor.tree import Signal
from rlm_wire.broker.groups import first_of
from rlm_wire.errors import SessionLost

CLOSE_GRACE: Final = 4.0
"""Seconds that a session gets to close in order; then its workspace is given up."""

LEAVE_GRACE: Final = 0.7
"""Seconds that a workspace which was given up gets to end what it runs by itself."""

PROMPTS_LIMIT: Final = 32
"""Prompts of one session that have no answer yet."""

OUTPUT_PAUSE: Final = 0.2
"""Seconds between two looks at the live output of a tool."""

_log: Final = logging.getLogger(__name__)

Show: TypeAlias = Callable[[str, Update], Awaitable[None]]
"""Takes a session's id, and what is to be shown of it."""


class _Prompt:
    """One prompt until it has its answer."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.scope = trio.CancelScope()
        self.began = False
        self.answered = trio.Event()
        self.result: dict[str, Any] | RpcError | None = None

    def answer(self, result: dict[str, Any] | RpcError) -> None:
        self.result = result
        self.answered.set()


class Session:
    """`id` is what the client calls it by. `run` is its task; `show` sends an update."""

    def __init__(self, order: Order, show: Show) -> None:
        self.id = secrets.token_hex(6)
        self._order = order
        self._show = show
        self._updates = Updates()
        self._edges = edges.Edges()
        self._progress = snapshot.Progress(order.contract)
        self._queue: deque[_Prompt] = deque()
        self._current: _Prompt | None = None
        """The prompt that was taken last; it may have its answer."""
        self._agents: Agents | None = None
        self._abandon: Callable[[], None] | None = None
        self._news = Signal()
        self._closing = False
        self._attempts = 0
        self._over: Failure | None = None
        """What all prompts are answered with, when no more can be worked on."""
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.steering = Steering()

    async def run(self) -> None:
        """Work on prompts until the session is closed. Raises what `show` raises.

        Cancellation: ends everything, in bounded time.
        """
        try:
            with self._scope:
                while (prompt := await self._next()) is not None:
                    await self._open(prompt)
        finally:
            self._closing = True
            self.steering.end()
            for prompt in self._prompts():
                self._settle(prompt, "cancelled")
            self._ended.set()

    def prompt(self, content: Content) -> Callable[[], Awaitable[dict[str, Any]]]:
        """Queue a prompt; what is returned waits for its answer. Raises RpcError."""
        if self._closing:
            raise RpcError(INVALID_REQUEST, "the session is closed")
        if len(self._queue) >= PROMPTS_LIMIT:
            raise RpcError(INVALID_REQUEST, f"there are {PROMPTS_LIMIT} prompts in this session's queue already")
        prompt = _Prompt(content)
        self._queue.append(prompt)
        self._news.notify()

        async def answer() -> dict[str, Any]:
            await prompt.answered.wait()
            if isinstance(prompt.result, RpcError):
                raise prompt.result
            assert prompt.result is not None
            return prompt.result

        return answer

    def cancel(self) -> None:
        """Cancel all prompts that are there now."""
        for prompt in self._prompts():
            prompt.scope.cancel()
            if not prompt.began:
                self._settle(prompt, "cancelled")

    def close(self) -> Callable[[], Awaitable[dict[str, Any]]]:
        """End the session; what is returned waits for that, and gives its last state. As often as you like."""
        self._closing = True
        self.cancel()
        self._news.notify()
        if self._agents is None:
            self._scope.cancel()  # what is being opened has nothing yet to be closed in order

        async def closed() -> dict[str, Any]:
            with trio.move_on_after(CLOSE_GRACE):
                await self._ended.wait()
            self.leave()
            await self._ended.wait()
            return {"_meta": self.meta}

        return closed

    def leave(self) -> None:
        """Give the workspace up, if there is one still; the session ends within LEAVE_GRACE."""
        self._closing = True
        self.cancel()
        self._news.notify()
        if self._abandon is not None:
            self._abandon()
            self._abandon = None
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + LEAVE_GRACE)

    @property
    def meta(self) -> dict[str, Any]:
        """How the session stands, for the `_meta` of an answer."""
        counts = snapshot.Counts()
        if self._agents is not None:
            supervisor = self._agents.supervisor
            below = list(supervisor.tree.root.descendants())
            counts = snapshot.Counts(
                supervisor.usage,
                supervisor.budgets.turns,
                supervisor.budgets.subagents,
                sum(node.settled_at is None for node in below),
            )
        return {snapshot.KEY: self._progress.snapshot(counts), edges.KEY: self._edges.told}

    def _prompts(self) -> list[_Prompt]:
        """Those that may have no answer yet."""
        return [*self._queue, *([self._current] if self._current is not None else [])]

    async def _next(self) -> _Prompt | None:
        """The next prompt that has no answer yet; None when the session is to end."""
        while not self._closing:
            while self._queue:
                prompt = self._queue.popleft()
                if prompt.result is None:
                    self._current = prompt
                    return prompt
            await self._news.wait()
        return None

    async def _open(self, prompt: _Prompt) -> None:
        """Open the session, and work on `prompt` and on those that come behind it."""
        if self._over is not None:
            self._settle(prompt, "error", self._over)
            return
        opened = False
        self._attempts += 1
        ledger = self.id if self._attempts == 1 else f"{self.id}-{self._attempts}"
        try:
            async with (
                open_order(self._order, ledger, self._emit, self._connected) as agents,
                trio.open_nursery() as nursery,
            ):
                opened, self._agents = True, agents
                nursery.start_soon(self._show_output)
                following: _Prompt | None = prompt
                while following is not None and self._over is None:
                    await self._work(following, agents)
                    following = await self._next() if self._over is None else None
                nursery.cancel_scope.cancel()
        except* ClientLost:
            raise
        except* Exception as group:  # noqa: BLE001  whatever it is, it is the end of this session, and not of the others
            failure = failure_of(first_of(group), opened=opened)
            if failure.kind == "internal":
                _log.error("session %s has failed", self.id, exc_info=group)
            if opened:
                self._over = self._over or failure
            if self._current is not None:
                self._settle(self._current, "error", self._over or failure)

    async def _work(self, prompt: _Prompt, agents: Agents) -> None:
        """Let the root agent work on `prompt`, and answer it."""
        if prompt.result is not None:
            return
        prompt.began, mark, before = True, self._edges.mark(), agents.supervisor.usage
        outcome: Outcome | None = None
        failure: Failure | None = None
        with prompt.scope:
            try:
                with self.steering.turn(agents.supervisor) as carried:
                    outcome = await agents.agent.prompt(behind(carried, prompt.content))
                await self._show_answer(outcome)
            except (ModelError, LedgerError, SessionLost) as error:
                failure = failure_of(error, opened=True)
                if isinstance(error, SessionLost):
                    self._over = failure
            finally:
                with trio.CancelScope(shield=True):
                    await self.steering.forget(agents.supervisor)
        for update in list(self._updates.unfinished()):
            await self._show(self.id, update)
        if outcome is None:  # the conversation is as it was before
            self._edges.roll_back(mark)
        stop = outcome.stop if outcome is not None else "error" if failure is not None else "cancelled"
        agents.stop, agents.message = (failure.stop, failure.details) if failure is not None else (stop, "")
        self._settle(prompt, stop, failure, before)

    async def _show_answer(self, outcome: Outcome) -> None:
        """What was not shown of it."""
        if outcome.answer.strip() and self._updates.said != outcome.answer:
            for update in self._updates.message(outcome.answer):
                await self._show(self.id, update)

    def _settle(self, prompt: _Prompt, stop: str, failure: Failure | None = None, before: Usage | None = None) -> None:
        """Answer `prompt`, which has ended with `stop`. `before` is the usage when it began, None if it did not."""
        if prompt.result is not None:
            return
        self._progress.stop = stop
        if failure is not None:
            prompt.answer(failure.answer(self.meta))
            return
        response: dict[str, Any] = {"stopReason": snapshot.stop_reason(stop), "_meta": self.meta}
        if before is not None and self._agents is not None:
            usage = self._agents.supervisor.usage
            spent = {
                "inputTokens": usage.prompt_tokens - before.prompt_tokens,
                "outputTokens": usage.completion_tokens - before.completion_tokens,
                "cachedReadTokens": usage.cached_tokens - before.cached_tokens,
            }
            response["usage"] = spent | {"totalTokens": spent["inputTokens"] + spent["outputTokens"]}
        prompt.answer(response)

    async def _emit(self, event: Event) -> None:
        if isinstance(event, SessionStarted):
            self._updates.workspace = event.workspace
        self._edges.take(event)
        self._progress.take(event)
        for update in self._updates.take(event):
            await self._show(self.id, update)

    async def _show_output(self) -> None:
        """Show the live output of tools, not more often than anybody can see."""
        while True:
            await trio.sleep(OUTPUT_PAUSE)
            for update in list(self._updates.output()):
                await self._show(self.id, update)

    @contextmanager
    def _connected(self, abandon: Callable[[], None]) -> Iterator[None]:
        self._abandon = abandon
        try:
            yield
        finally:
            self._abandon = None
