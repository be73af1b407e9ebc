"""The turn loop: one agent's conversation with its model and its tools, every step in the ledger.

What to do with a reply is decided in `decisions`; here it is done.
"""

from __future__ import annotations

import math
import secrets

import msgspec
import trio

from rlm_harness import prompts
from rlm_harness.compaction import CompactionFailed, CompactionPolicy, WindowedModel
from rlm_harness.conversation import Conversation
from rlm_harness.decisions import Finish, Nudge, Nudges, Refuse, Run, next_step
from rlm_harness.events import AssistantReplied, Emit, Nudged, ToolFinished, ToolOutput, ToolStarted, TurnStarted, Usage
from rlm_harness.ledger import records
from rlm_harness.ledger.writer import Ledger
from rlm_harness.model.interface import Message, Model, Reply, ToolCall
from rlm_harness.rendering import Rendered, render_error, shorten
from rlm_harness.tools import TOOL_SCHEMAS, Arguments, parsed_or_error, run_tool
from rlm_harness.workspace import AgentTools

TELL_TIMEOUT = 1.0
"""Seconds that a cancelled turn may take to tell its watcher how the tool ended: a terminal may be stuck."""


class Outcome(msgspec.Struct, frozen=True):
    """How one prompt ended: `stop` is `answered`, `length`, `empty`, `max_turns` or `compaction_failed`.

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
    ) -> None:
        self._tools = tools
        self._emit = emit
        self._surroundings = surroundings
        self._max_turns = max_turns
        self._conversation = Conversation(ledger)
        self._model = WindowedModel(
            model, TOOL_SCHEMAS, self._conversation, emit, self._spend, compaction or CompactionPolicy()
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

    async def prompt(self, task: str) -> Outcome:
        """Work on `task` until the model answers or `max_turns` model calls were made for it.

        Raises ModelError, LedgerError or SessionLost; then, and when cancelled, the conversation is as if the prompt
        had never been, while the workspace keeps what was done in it.
        Cancellation: the running tool is stopped, and its partial result recorded, before this returns.
        """
        if not self._conversation.messages:
            system: Message = {"role": "system", "content": prompts.system_prompt(self._surroundings)}
            await self._conversation.add(records.System(message=system))
        before, window, start = self._conversation.mark(), self._model.state, self._turns
        self._prompt_usage = Usage()
        asked = records.User(id=secrets.token_hex(8), turn=start, message={"role": "user", "content": task})
        try:
            await self._conversation.add(asked)
            return await self._work(start)
        except BaseException as error:
            self._model.state = window
            rollback = records.PromptRollback(
                prompt_id=asked.id,
                start_turn=start,
                attempted_turns=self._turns - start,
                reason="cancelled" if isinstance(error, trio.Cancelled) else "error",
            )
            await self._conversation.roll_back(before, rollback)
            raise

    async def _work(self, start: int) -> Outcome:
        nudges, text = Nudges(), ""
        while self._max_turns is None or self._turns - start < self._max_turns:
            try:
                reply = await self._ask_model()
            except CompactionFailed:
                return await self._finish("compaction_failed", text, self._turns - start)
            text = reply.text or text
            match next_step(reply, nudges):
                case Finish(stop):
                    return await self._finish(stop, reply.text, self._turns - start)
                case Nudge() as nudge:
                    nudges = nudge.nudges
                    await self._remind(nudge)
                case Refuse(calls, error):
                    for call in calls:
                        await self._conclude(call, render_error(error), duration=0.0)
                case Run(call, arguments):
                    await self._run(call, arguments)
        return await self._finish("max_turns", text, self._turns - start)

    async def _ask_model(self) -> Reply:
        self._turns += 1
        await self._emit(TurnStarted(self._turns))
        started = trio.current_time()
        reply = await self._model.reply(self._turns)
        duration = trio.current_time() - started
        await self._conversation.add(
            records.Assistant(
                turn=self._turns,
                message=reply.message,
                finish_reason=reply.finish_reason,
                usage=reply.usage,
                duration=round(duration, 6),
                tool_calls=[parsed_or_error(call) for call in reply.tool_calls],
            )
        )
        await self._emit(AssistantReplied(self._turns, reply.text, reply.finish_reason, reply.usage, duration))
        return reply

    async def _run(self, call: ToolCall, arguments: Arguments) -> None:
        async def show(text: str) -> None:
            await self._emit(ToolOutput(call.id, text))

        await self._emit(ToolStarted(self._turns, call.id, call.name, msgspec.to_builtins(arguments)))
        started = trio.current_time()
        rendered = await run_tool(self._tools, arguments, show)
        await self._conclude(call, rendered, duration=trio.current_time() - started)

    async def _conclude(self, call: ToolCall, rendered: Rendered, *, duration: float) -> None:
        """Record the result of `call`, whole, and show the model as much of it as it may see.

        A cancelled turn comes here too, with what its tool had produced: that is recorded and told before it ends.
        """
        message: Message = {"role": "tool", "tool_call_id": call.id, "content": rendered.output.text}
        whole = records.ToolResult(turn=self._turns, tool=call.name, duration=round(duration, 6), message=message)
        shortened = shorten(rendered.output)
        if shortened is None:
            await self._conversation.add(whole)
        else:
            message = message | {"content": shortened}
            source = await self._conversation.add_aside(whole)
            await self._conversation.add(records.ContextMessage(message=message, source_message_index=source))
        for notice in rendered.recovery:
            recovery = prompts.runtime_event("recovery", notice)
            await self._conversation.add(records.KernelRecovery(message=recovery, provenance={"kind": "recovery"}))
        cancelled = trio.current_effective_deadline() == -math.inf
        with trio.move_on_after(TELL_TIMEOUT if cancelled else math.inf, shield=cancelled):
            content = str(message["content"])
            await self._emit(
                ToolFinished(
                    call.id, call.name, rendered.status, rendered.note, content, duration, exit_code=rendered.exit_code
                )
            )
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _remind(self, nudge: Nudge) -> None:
        message = prompts.runtime_event("nudge", nudge.text, reason=nudge.kind)
        provenance = {"kind": "nudge", "reason": nudge.kind}
        record = records.EmptyReplyNudge if nudge.kind == "empty_reply" else records.PlanReplyNudge
        await self._conversation.add(record(message=message, provenance=provenance))
        await self._emit(Nudged(nudge.kind, nudge.text))

    async def _finish(self, stop: str, answer: str, turns: int) -> Outcome:
        used = self._prompt_usage
        await self._conversation.ledger.append(records.Done(stop=stop, answer=answer[:1000], usage=used, turns=turns))
        return Outcome(stop, answer, turns, used)
