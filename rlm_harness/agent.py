"""The turn loop: one agent's conversation with its model and its tools, every step in the ledger.

What to do with a reply is decided in `decisions`; here it is done.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import msgspec
import trio

from rlm_harness import prompts
from rlm_harness.compaction import CompactionFailed, CompactionPolicy, WindowedModel, WindowState
from rlm_harness.conversation import Conversation, Mark
from rlm_harness.decisions import Finish, Nudge, Nudges, Refuse, Run, RunInOrder, ToolPolicy, next_step
from rlm_harness.events import AssistantReplied, Emit, Nudged, ToolFinished, ToolOutput, ToolStarted, TurnStarted, Usage
from rlm_harness.ledger import records
from rlm_harness.ledger.history import History
from rlm_harness.ledger.writer import Ledger
from rlm_harness.loss import WorkspaceAbandoned
from rlm_harness.model.interface import Content, Message, Model, Reply, ToolCall
from rlm_harness.pictures import Picture, pictures_message
from rlm_harness.recovery import OpenPrompt, Recovered, recover
from rlm_harness.rendering import Rendered, as_output, render_error, shorten
from rlm_harness.supervision import BudgetExhausted, Supervision, Unsupervised
from rlm_harness.tools import MAX_WAIT, Arguments, Wait, parsed_or_error, run_tool, schemas_of
from rlm_harness.workspace import AgentTools
from rlm_wire.errors import SessionLost
from rlm_wire.methods.tools import Output

TELL_TIMEOUT = 1.0
"""Seconds that a cancelled turn may take to tell its watcher how the tool ended: a terminal may be stuck."""


class Outcome(msgspec.Struct, frozen=True):
    """How one prompt ended: `stop` is `answered`, or why there is no better answer.

    That is `length`, `empty`, `max_turns`, `max_tokens`, `token_budget` (its own tokens) or `compaction_failed`.
    `turns` and `usage` are those of the prompt.
    """

    stop: str
    answer: str
    turns: int
    usage: Usage


class Agent:
    """A model, its tools and its ledger. `prompt` as often as you like, one at a time."""

    def __init__(
        self,
        model: Model,
        tools: AgentTools,
        ledger: Ledger,
        emit: Emit,
        *,
        surroundings: prompts.Surroundings,
        max_turns: int | None = None,
        compaction: CompactionPolicy | None = None,
        tool_policy: ToolPolicy | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        self._tools = tools
        self._tool_policy = tool_policy or ToolPolicy()
        self._supervision = supervision or Unsupervised()
        self._emit = emit
        self._surroundings = surroundings
        self._max_turns = max_turns
        self._conversation = Conversation(ledger)
        schemas = schemas_of(self._tool_policy.tools)
        self._model = WindowedModel(
            model, schemas, self._conversation, emit, self._spend, compaction or CompactionPolicy()
        )
        self._turns = 0
        self._usage = Usage()
        self._prompt_usage = Usage()

    @property
    def turns(self) -> int:
        """Model calls begun so far, also those of prompts that were cancelled."""
        return self._turns

    @property
    def usage(self) -> Usage:
        """Tokens of every reply so far, also for prompts that were cancelled, and of summaries."""
        return self._usage

    def _spend(self, usage: Usage) -> None:
        self._usage += usage
        self._prompt_usage += usage
        self._supervision.spent(usage)

    async def prompt(self, task: Content, *, event_ids: Sequence[str] = ()) -> Outcome:
        """Work on `task` until the model answers or `max_turns` model calls were made for it.

        `event_ids` are those of the parent's messages that `task` consists of, if any.

        Raises ModelError, LedgerError or, as soon as it is known, WorkspaceLost; then, and when cancelled, the
        conversation is as if the prompt had never been, while the workspace keeps what was done in it.
        Cancellation: the running tool is stopped, and its partial result recorded, before this returns.
        """
        if not self._conversation.messages:
            policy = self._tool_policy
            text = prompts.system_prompt(self._surroundings, policy.tools, several=policy.several)
            await self._conversation.add(records.System(message={"role": "system", "content": text}))
        start = self._turns
        asked = records.User(
            id=secrets.token_hex(8),
            turn=start,
            message={"role": "user", "content": task},
            event_ids=list(event_ids),
        )
        async with self._attempt(asked.id, start, self._conversation.mark()):
            await self._conversation.add(asked)
            await self._supervision.delivered([asked])
            return await self._work(start)

    async def restore(self, history: History, notice: records.Resumed) -> Recovered:
        """Take up the conversation in `history`, which is what the ledger holds, and tell the model so by `notice`.

        What became of tool calls without a result is not known, and the model is told that too. Raises LedgerError.
        """
        recovered = recover(history)
        self._turns, self._usage = recovered.turns, recovered.usage
        if recovered.undone is not None:
            await self._conversation.ledger.open_window("rollback", recovered.undone)
            recovered = msgspec.structs.replace(recovered, indices=recovered.undone, calls=[])
        self._conversation.restore([history.messages[index] for index in recovered.indices])
        self._model.state = WindowState(sum(message["role"] == "assistant" for message in self._conversation.messages))
        for call in recovered.calls:
            if call.result is None:
                message: Message = {"role": "tool", "tool_call_id": call.id, "content": prompts.UNKNOWN_OUTCOME}
                await self._conversation.add(records.UnknownOutcome(tool=call.tool, message=message))
            else:
                await self._show(history.messages[call.result], call.result)
        if self._conversation.messages:
            await self._conversation.add(notice)
        return recovered

    async def resume(self, prompt: OpenPrompt, history: History) -> Outcome:
        """Go on with a prompt that `restore` has found open; else as `prompt`. Its `usage` is from here on."""
        before = self._conversation.point([history.messages[index] for index in prompt.indices], prompt.indices)
        self._prompt_usage = Usage()
        if prompt.answer is not None:
            return await self._finish("answered", prompt.answer, self._turns - prompt.start_turn)
        async with self._attempt(prompt.id, prompt.start_turn, before):
            return await self._work(prompt.start_turn)

    @asynccontextmanager
    async def _attempt(self, prompt: str, start: int, before: Mark) -> AsyncIterator[None]:
        """Around the work on a prompt: if it fails, the conversation is as it was `before`."""
        window = self._model.state
        self._prompt_usage = Usage()
        try:
            async with self._tools.held():
                yield
        except BaseException as error:
            self._model.state = window
            rollback = records.PromptRollback(
                prompt_id=prompt,
                start_turn=start,
                attempted_turns=self._turns - start,
                reason=_reason(error),
            )
            self._supervision.rolled_back()
            await self._conversation.roll_back(before, rollback)
            raise

    async def _work(self, start: int) -> Outcome:
        nudges, text = Nudges(), ""
        while (stop := self._exhausted(start)) is None:
            await self._tell(await self._supervision.due())
            try:
                reply = await self._ask_model()
            except CompactionFailed:
                stop = "compaction_failed"
                break
            except BudgetExhausted as error:
                stop = str(error)
                break
            text = reply.text or text
            match next_step(reply, nudges, self._tool_policy):
                case Finish(stop):
                    told = await self._supervision.due_at_end()
                    if not told:
                        return await self._finish(stop, reply.text, self._turns - start)
                    await self._tell(told)
                case Nudge() as nudge:
                    nudges = nudge.nudges
                    await self._remind(nudge)
                case RunInOrder(steps):
                    await self._carry_out(steps)
                case step:
                    await self._carry_out([step])
            self._supervision.stepped(self._conversation.ledger.messages)
        return await self._finish(stop, text, self._turns - start)

    def _exhausted(self, start: int) -> str | None:
        """Why no further model call may begin, if so."""
        if self._max_turns is not None and self._turns - start >= self._max_turns:
            return "max_turns"
        return self._supervision.exhausted

    async def _tell(self, told: Sequence[records.MessageRecord]) -> None:
        for record in told:
            await self._conversation.add(record)
        await self._supervision.delivered(told)

    async def _ask_model(self) -> Reply:
        self._turns += 1
        self._supervision.turn_begins()
        await self._emit(TurnStarted(self._turns))
        started = trio.current_time()
        reply = await self._model.reply(self._turns)
        duration = trio.current_time() - started
        replied = records.Assistant(
            turn=self._turns,
            message=reply.message,
            finish_reason=reply.finish_reason,
            usage=reply.usage,
            duration=round(duration, 6),
            tool_calls=[parsed_or_error(call, self._tool_policy.tools) for call in reply.tool_calls],
        )
        await self._conversation.add(replied)
        self._supervision.replied(replied.id)
        await self._emit(
            AssistantReplied(
                self._turns,
                reply.text,
                reply.finish_reason,
                reply.usage,
                duration,
                request_id=reply.request_id,
                record=replied.id,
            )
        )
        return reply

    async def _carry_out(self, steps: Sequence[Run | Refuse]) -> None:
        """Run the calls one after the other. What must reach the model by other messages follows all their results."""
        recovery: list[str] = []
        pictures: list[Picture] = []
        for step in steps:
            await trio.lowlevel.checkpoint_if_cancelled()
            match step:
                case Run(call, arguments):
                    rendered = await self._run(call, arguments)
                    recovery += rendered.recovery
                    pictures += rendered.pictures
                case Refuse(calls, error):
                    for call in calls:
                        await self._conclude(call, render_error(error), duration=0.0)
        for notice in recovery:
            message = prompts.runtime_event("recovery", notice)
            await self._conversation.add(records.KernelRecovery(message=message, provenance={"kind": "recovery"}))
        if pictures and self._tool_policy.pictures:
            provenance = {"kind": "notice", "pictures": len(pictures)}
            shown = records.CellPictures(message=pictures_message(pictures), provenance=provenance)
            await self._conversation.add(shown)
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _run(self, call: ToolCall, arguments: Arguments) -> Rendered:
        """Run one call, and record its result."""

        async def show(text: str) -> None:
            await self._emit(ToolOutput(call.id, text))

        await self._emit(ToolStarted(self._turns, call.id, call.name, msgspec.to_builtins(arguments)))
        started = trio.current_time()
        if isinstance(arguments, Wait):
            rendered = await self._wait(arguments.timeout)
        else:
            rendered = await run_tool(self._tools, arguments, show, self._tool_policy.timeout)
        await self._conclude(call, rendered, duration=trio.current_time() - started)
        return rendered

    async def _wait(self, seconds: float) -> Rendered:
        note = f"[waiting is for {MAX_WAIT} seconds at most]\n" if seconds > MAX_WAIT else ""
        came = await self._supervision.wait(min(seconds, MAX_WAIT))
        text = note + (prompts.WAIT_EVENTS if came else prompts.WAIT_TIMED_OUT)
        return Rendered(as_output(text), note=text)

    async def _conclude(self, call: ToolCall, rendered: Rendered, *, duration: float) -> None:
        """Record the result of `call`, whole, and show the model as much of it as it may see.

        A cancelled turn comes here too, with what its tool had produced: that is recorded and told before it ends.
        """
        message: Message = {"role": "tool", "tool_call_id": call.id, "content": rendered.output.text}
        whole = records.ToolResult(
            turn=self._turns,
            tool=call.name,
            duration=round(duration, 6),
            message=message,
            skill_calls=rendered.skill_calls,
        )
        if shorten(rendered.output, self._tool_policy.max_result) is None:
            await self._conversation.add(whole)
        else:
            message = await self._show(message, await self._conversation.add_aside(whole), rendered.output)
        cancelled = trio.current_effective_deadline() == -math.inf
        with trio.move_on_after(TELL_TIMEOUT if cancelled else math.inf, shield=cancelled):
            content = str(message["content"])
            await self._emit(
                ToolFinished(
                    call.id,
                    call.name,
                    rendered.status,
                    rendered.note,
                    content,
                    duration,
                    exit_code=rendered.exit_code,
                    skill_calls=rendered.skill_calls,
                )
            )

    async def _show(self, whole: Message, source: int, output: Output | None = None) -> Message:
        """Show the model the result that stands at `source`, shortened."""
        shortened = shorten(output or as_output(whole["content"]), self._tool_policy.max_result)
        message = whole | {"content": whole["content"] if shortened is None else shortened}
        await self._conversation.add(records.ContextMessage(message=message, source_message_index=source))
        return message

    async def _remind(self, nudge: Nudge) -> None:
        message = prompts.runtime_event("nudge", nudge.text, reason=nudge.kind)
        provenance = {"kind": "nudge", "reason": nudge.kind}
        record = records.EmptyReplyNudge if nudge.kind == "empty_reply" else records.PlanReplyNudge
        await self._conversation.add(record(message=message, provenance=provenance))
        await self._emit(Nudged(nudge.kind, nudge.text))

    async def _finish(self, stop: str, answer: str, turns: int) -> Outcome:
        used = self._prompt_usage
        self._supervision.stepped(self._conversation.ledger.messages)
        await self._conversation.ledger.append(records.Done(stop=stop, answer=answer[:1000], usage=used, turns=turns))
        return Outcome(stop, answer, turns, used)


def _reason(error: BaseException) -> Literal["cancelled", "workspace_lost", "error"]:
    """Why a prompt is rolled back."""
    if isinstance(error, trio.Cancelled | WorkspaceAbandoned):
        return "cancelled"
    return "workspace_lost" if isinstance(error, SessionLost) else "error"
