"""One task from start to end: workspace, ledger and agent opened, the prompt run, everything closed again.

Interruptions too: the first Ctrl-C cancels the turn and waits until its tool has stopped, the second gives
the worker up, which then ends what it runs or is killed; a third waits for nothing. SIGTERM is as the second.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import trio

from rlm_harness.agent import Outcome
from rlm_harness.events import Cancelling, Emit, SessionEnded
from rlm_harness.ledger.writer import LedgerError
from rlm_harness.model.interface import Model, ModelError
from rlm_harness.opening import Agents, Task, open_agents
from rlm_harness.skills.table import SkillTable
from rlm_harness.supervisor.restoring import notice, restore
from rlm_harness.workspace import Workspace
from rlm_wire.errors import SessionLost

Result = TypeVar("Result")

WORKSPACE_LOST = 3
"""The exit code that says that not the agent failed but what it worked in."""

LEAVE_GRACE = 1.0
"""Seconds a worker that was given up gets to end what it runs by itself, before it is killed for it."""


_ADVICE = {
    "length": "the model's reply was cut at its token limit: ask for less at once, or use a model with a higher limit",
    "max_turns": "the model had not answered when its turns were used up: raise --max-turns",
    "max_tokens": "the model had not answered when its tokens were used up: raise --max-tokens",
    "compaction_failed": "the conversation had become too long for the model, and it gave no summary to go on from: use"
    " a model with a larger window, or have it summarise earlier with --summarize-at-tokens",
    "empty": "the model gave neither an answer nor a tool call, although it was reminded: try another model",
}
"""What to do where the prompt came to an end, but not to an answer."""


class Interrupts:
    """Turns signals into cancellation while `run` runs, of as little as will do."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.received: signal.Signals | None = None
        """The signal that came first, if any."""
        self._everything = trio.CancelScope()
        self._turn: trio.CancelScope | None = None
        self._abandon: Callable[[], None] | None = None

    async def run(self, work: Callable[[], Awaitable[Result]]) -> Result | None:
        """Run `work` with signals handled; None if a signal ended it before it could return.

        Raises what `work` raises. Cancellation: cancels `work`.
        """
        answer: Result | None = None
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch, nursery)
            with self._everything:
                try:
                    answer = await work()
                except Exception as error:  # noqa: BLE001  (raised below: the nursery would wrap it in a group)
                    failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return answer

    @contextmanager
    def turn(self) -> Iterator[trio.CancelScope]:
        """Within this block the first Ctrl-C cancels the block and nothing else."""
        with trio.CancelScope() as scope:
            self._turn = scope
            try:
                yield scope
            finally:
                self._turn = None

    @contextmanager
    def connected(self, abandon: Callable[[], None]) -> Iterator[None]:
        """Within this block leaving begins with `abandon`, which ends every wait for work to stop."""
        self._abandon = abandon
        try:
            yield
        finally:
            self._abandon = None

    async def _watch(self, nursery: trio.Nursery, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                first = self.received is None
                self.received = self.received or signal.Signals(number)
                if self._turn is not None:
                    self._turn.cancel()
                if first and number == signal.SIGINT and self._turn is not None:
                    nursery.start_soon(self._tell)  # not here: a terminal that is stuck must not hold the next signal
                elif self._abandon is not None:
                    self._abandon()
                    self._abandon = None
                    self._everything.deadline = trio.current_time() + LEAVE_GRACE
                else:
                    self._everything.cancel()

    async def _tell(self) -> None:
        with suppress(OSError):  # if nobody reads any more, the turn finds out by itself
            await self._emit(Cancelling())


async def run_task(
    task: Task,
    model: Model,
    emit: Emit,
    interrupts: Interrupts,
    *,
    token: bytes | None = None,
    skills: SkillTable | None = None,
) -> SessionEnded:
    """Do `task`, telling `emit` everything, and say how it ended; by then nothing of it runs any more.

    `token` is the worker's, where it needs one. `skills` answers cells; which agents have is in the task's policy.

    Raises UserError, WireError or OSError (from `emit`) if it could not begin or go on.
    Cancellation: ends everything at once; the ledger has what was recorded so far.
    """
    started = trio.current_time()
    opening = open_agents(task, model, emit, token=token, skills=skills, connected=interrupts.connected)
    async with opening as agents:
        work = partial(_work, task.text, agents)
        agents.stop, answer, message = await _prompt(work, agents.workspace, interrupts)
        agents.message = str(message)
    supervisor, ledger, lost = agents.supervisor, agents.ledger, agents.workspace.lost
    if isinstance(message, LedgerError):
        message = f"{message}; rlm-harness resume {ledger.session} goes on with it when that is mended"
    if agents.stop == "answered" and lost:
        supervisor.notices.append(f"what was left running is not known: {lost.reason}")
    ended = SessionEnded(
        agents.stop,
        answer,
        supervisor.budgets.turns,
        supervisor.usage,
        trio.current_time() - started,
        str(ledger.path),
        str(message),
        supervisor.notices,
        agents.lost_calls,
    )
    await emit(ended)
    return ended


async def _work(text: str, agents: Agents) -> Outcome:
    """Have the root agent work on `text`, or (empty) on what was under way when its history was broken off."""
    supervisor, agent, history = agents.supervisor, agents.agent, agents.history
    if history is not None:
        await restore(supervisor)
        recovered = await agent.restore(history, await notice(supervisor, supervisor.tree.root, history))
        if not text and recovered.prompt is not None:
            return await agent.resume(recovered.prompt, history)
    return await agent.prompt(text)


async def _prompt(
    work: Callable[[], Awaitable[Outcome]], workspace: Workspace, interrupts: Interrupts
) -> tuple[str, str, str | LedgerError]:
    """How the prompt ended: stop, answer, and what went wrong."""
    with interrupts.turn():
        try:
            outcome = await work()
        except ModelError as error:
            return "refused" if error.refused else "error", "", str(error)
        except LedgerError as error:
            return "error", "", error
        except SessionLost:
            if interrupts.received is None:  # else it was we who gave it up
                return "workspace_lost", "", str(workspace.lost)
        else:
            return outcome.stop, outcome.answer, _ADVICE.get(outcome.stop, "")
    return "cancelled", "", ""


def exit_code(ended: SessionEnded | None, interrupts: Interrupts) -> int:
    """0 for an answer, 2 if the endpoint refused what was configured, WORKSPACE_LOST, 128 + n for signal n, else 1."""
    if interrupts.received is not None:
        return 128 + interrupts.received
    codes = {"answered": 0, "refused": 2, "workspace_lost": WORKSPACE_LOST}
    return 1 if ended is None else codes.get(ended.stop, 1)
