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
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from rlm_harness.acp import edges, snapshot
from rlm_harness.acp.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, ClientLost, RpcError
from rlm_harness.acp.opening import Order, open_order
from rlm_harness.acp.prompts import behind
from rlm_harness.acp.steering import Steering
from rlm_harness.acp.updates import Update, Updates
from rlm_harness.agent import Outcome
from rlm_harness.events import Event, SessionStarted, Usage
from rlm_harness.ledger.writer import LedgerError
from rlm_harness.model.interface import Content, ModelError
from rlm_harness.opening import Agents
from rlm_harness.secrets import UserError
from rlm_wire.broker.groups import first_of
from rlm_wire.errors import CallError, SessionLost, WireError

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
        self.cancelled = False
        self.answered = trio.Event()
        self.result: dict[str, Any] | RpcError | None = None

    def answer(self, result: dict[str, Any] | RpcError) -> None:
        if self.result is None:
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
        self._agents: Agents | None = None
        self._abandon: Callable[[], None] | None = None
        self._news = trio.Event()
        self._closing = False
        self._over: Callable[[], RpcError] | None = None
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
            self.cancel()
            self._ended.set()

    def prompt(self, content: Content) -> Callable[[], Awaitable[dict[str, Any]]]:
        """Queue a prompt; what is returned waits for its answer. Raises RpcError."""
        if self._closing:
            raise RpcError(INVALID_REQUEST, "the session is closed")
        if len(self._queue) >= PROMPTS_LIMIT:
            raise RpcError(INVALID_REQUEST, f"there are {PROMPTS_LIMIT} prompts in this session's queue already")
        prompt = _Prompt(content)
        self._queue.append(prompt)
        self._notify()

        async def answer() -> dict[str, Any]:
            await prompt.answered.wait()
            if isinstance(prompt.result, RpcError):
                raise prompt.result
            assert prompt.result is not None
            return prompt.result

        return answer

    def cancel(self) -> None:
        """Cancel all prompts that are there now."""
        for prompt in [*self._queue, *([self._current] if self._current is not None else [])]:
            prompt.cancelled = True
            prompt.scope.cancel()
            if not prompt.began:
                prompt.answer(self._response("cancelled"))

    def close(self) -> Callable[[], Awaitable[dict[str, Any]]]:
        """End the session; what is returned waits for that, and gives its last state. As often as you like."""
        self._closing = True
        self.cancel()
        self._notify()
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
        self._notify()
        if self._abandon is not None:
            self._abandon()
            self._abandon = None
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + LEAVE_GRACE)

    @property
    def meta(self) -> dict[str, Any]:
        """How the session stands, for the `_meta` of an answer."""
        if self._agents is not None:
            supervisor = self._agents.supervisor
            below = list(supervisor.tree.root.descendants())
            self._progress.counts = snapshot.Counts(
                supervisor.usage,
                supervisor.budgets.turns,
                supervisor.budgets.subagents,
                sum(node.settled_at is None for node in below),
            )
        return {snapshot.KEY: self._progress.snapshot(), edges.KEY: self._edges.told}

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
            self._answer_with(self._over)
            return
        opened = False
        try:
            async with open_order(self._order, self._emit, self._connected) as agents, trio.open_nursery() as nursery:
                opened, self._agents = True, agents
                nursery.start_soon(self._show_output)
                following: _Prompt | None = prompt
                while following is not None and self._over is None:
                    await self._work(following, agents)
                    following = await self._next() if self._over is None else None
                nursery.cancel_scope.cancel()
        except* ClientLost:
            raise
        except* (UserError, LedgerError, WireError) as group:
            self._fail_with(first_of(group), opened=opened)
        except* Exception as group:  # noqa: BLE001  nobody foresaw it: the end of this session, and not of the others
            _log.error("the session %s has failed", self.id, exc_info=group)
            error = first_of(group)
            details = f"{type(error).__name__}: {error}"
            self._end(partial(self._failure, "the session has failed", kind="internal", details=details))

    def _fail_with(self, error: Exception, *, opened: bool) -> None:
        lost = partial(self._workspace_lost, str(error))
        if opened:
            self._end(lost)
        elif not isinstance(error, UserError | LedgerError | CallError):
            self._answer_with(lost)
        else:
            details = str(error)
            self._answer_with(
                partial(self._failure, "the session cannot be opened", kind="configuration", details=details)
            )

    def _end(self, failure: Callable[[], RpcError]) -> None:
        """Answer the prompt that is being worked on with `failure`, and all that come later."""
        self._over = self._over or failure
        self._answer_with(self._over)

    def _answer_with(self, failure: Callable[[], RpcError]) -> None:
        if self._current is not None:
            self._current.answer(failure())
            self._current = None

    async def _work(self, prompt: _Prompt, agents: Agents) -> None:
        """Let the root agent work on `prompt`, and answer it."""
        if prompt.result is not None:
            return
        prompt.began, mark = True, self._edges.mark()
        before = agents.supervisor.usage
        result: dict[str, Any] | RpcError | None = None
        with prompt.scope:
            try:
                with self.steering.turn(agents.supervisor) as carried:
                    outcome = await agents.agent.prompt(behind(carried, prompt.content))
            except ModelError as error:
                result = self._model_failed(error)
            except LedgerError as error:
                result = self._failure("the session cannot be recorded", kind="ledger", details=str(error))
            except SessionLost as error:
                self._over = partial(self._workspace_lost, str(error))
                result = self._over()
            else:
                result = await self._finish(outcome, before, agents)
        if result is None or isinstance(result, RpcError):
            self._edges.roll_back(mark)
            agents.stop = self._progress.stop = "error" if result is not None else "cancelled"
        prompt.answer(self._response("cancelled", before) if result is None else result)
        self._current = None

    async def _finish(self, outcome: Outcome, before: Usage, agents: Agents) -> dict[str, Any]:
        """Show what was not shown, and answer."""
        agents.stop = self._progress.stop = outcome.stop
        if outcome.answer.strip() and self._updates.said != outcome.answer:
            for update in self._updates.message(outcome.answer):
                await self._show(self.id, update)
        return self._response(outcome.stop, before)

    def _response(self, stop: str, before: Usage | None = None) -> dict[str, Any]:
        """What a prompt is answered with. `before` is the usage when it began, None if it did not."""
        if stop == "cancelled":
            self._progress.stop = stop
        response: dict[str, Any] = {"stopReason": snapshot.stop_reason(stop), "_meta": self.meta}
        if before is not None and self._agents is not None:
            usage = self._agents.supervisor.usage
            spent = {
                "inputTokens": usage.prompt_tokens - before.prompt_tokens,
                "outputTokens": usage.completion_tokens - before.completion_tokens,
                "cachedReadTokens": usage.cached_tokens - before.cached_tokens,
            }
            response["usage"] = spent | {"totalTokens": spent["inputTokens"] + spent["outputTokens"]}
        return response

    def _model_failed(self, error: ModelError) -> RpcError:
        kind = "model_refused" if error.refused else "model_transport"
        return self._failure("the model gave no reply", kind=kind, retryable=not error.refused, details=str(error))

    def _workspace_lost(self, reason: str) -> RpcError:
        return self._failure("the workspace is lost", kind="workspace_lost", details=reason)

    def _failure(self, message: str, *, kind: str, details: str, retryable: bool = False) -> RpcError:
        self._progress.stop = "error"
        data = {"kind": kind, "retryable": retryable, "details": details, "_meta": self.meta}
        return RpcError(INTERNAL_ERROR, message, data)

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

    def _notify(self) -> None:
        self._news.set()
        self._news = trio.Event()
