"""Asks the model, and keeps the conversation within its window: where it does not fit, a summary takes its place.

*Before* a reply if what would be sent nears the window; *after* it if the window cut it off, or if the endpoint refuses
the conversation as too long. Each compaction needs a turn since the last, so that there is something to leave out, and
a model with too small a window comes to an end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeAlias

import msgspec
import trio

from rlm_harness import prompts
from rlm_harness.conversation import Conversation, message_size
from rlm_harness.estimation import TokenEstimate
from rlm_harness.events import Compacted, Compacting, Emit, Event, Retrying, SummaryReplied, Usage
from rlm_harness.ledger import records
from rlm_harness.model.interface import ContextOverflow, Message, Model, Reply, ToolSchema

MAX_ATTEMPTS: Final = 5
"""Of one summary: each costs as much as a turn."""

RESERVE: Final = 16_384
"""Tokens of the window that are left for a reply and the next result, or half of the window if that is more."""

NEARLY: Final = 0.9
"""A reply that was cut off when this part of the window was full was cut off by the window, not by its own limit."""

Reason: TypeAlias = Literal["threshold", "length", "overflow"]


class CompactionFailed(Exception):
    """The conversation is too long, and there is no summary to go on from."""


class CompactionPolicy(msgspec.Struct, frozen=True):
    """When to make room: at `summarize_at` tokens, or (None) when the model's window, which `window` tells, fills up.

    Without either, or if the window is unknown, only when the endpoint refuses or a reply is cut off. At most `most`
    times (None: as often as need be), with up to `attempts` tries for each summary.
    """

    summarize_at: int | None = None
    window: Callable[[], Awaitable[int | None]] | None = None
    most: int | None = None
    attempts: int = MAX_ATTEMPTS


class WindowState(msgspec.Struct, frozen=True):
    """What is known of the current window: `turns` in it, the tokens, and how many messages went through, at the last.

    `fits` counts messages, ascending, and is kept for as many calls as there are attempts.
    """

    turns: int = 0
    estimate: TokenEstimate = TokenEstimate()
    fits: tuple[int, ...] = ()


class _Summary(msgspec.Struct, frozen=True):
    text: str
    covered: int
    attempts: int
    usage: Usage
    request_id: str


class WindowedModel:
    """One agent's model, seen through the conversation that it must fit."""

    def __init__(
        self,
        model: Model,
        tools: list[ToolSchema],
        conversation: Conversation,
        emit: Emit,
        spend: Callable[[Usage], None],
        policy: CompactionPolicy,
    ) -> None:
        """`spend` is told the tokens of each reply as it comes, of summaries and discarded replies too."""
        self.state = WindowState()
        """To be put back when the conversation is rolled back."""
        self._model = model
        self._tools = tools
        self._tools_size = sum(map(message_size, tools))
        self._conversation = conversation
        self._emit = emit
        self._spend = spend
        self._policy = policy
        self._compactions = 0

    @property
    def _may_compact(self) -> bool:
        """There is a turn to leave out, and the policy allows it."""
        return bool(self.state.turns) and (self._policy.most is None or self._compactions < self._policy.most)

    async def reply(self, turn: int) -> Reply:
        """The model's answer to the conversation, which may be another one then. `turn` is for the records.

        Raises ModelError, LedgerError, CompactionFailed. Cancellation: ends the request.
        """
        if self._may_compact and await self._is_due():
            await self._compact("threshold", turn)
        while True:
            started = trio.current_time()
            try:
                reply = await self._model.reply(self._conversation.messages, self._tools, self._emit)
            except ContextOverflow:
                if not self._may_compact:
                    raise
                await self._compact("overflow", turn)
                continue
            self._spend(reply.usage)
            if not await self._is_cut_by_window(reply):
                self._take_note(reply)
                return reply
            duration = round(trio.current_time() - started, 6)
            await self._conversation.add_aside(
                records.DiscardedAssistant(
                    turn=turn,
                    message=reply.message,
                    finish_reason=reply.finish_reason,
                    usage=reply.usage,
                    duration=duration,
                )
            )
            await self._compact("length", turn)

    async def _is_due(self) -> bool:
        threshold = self._policy.summarize_at
        if threshold is None:
            window = await self._window()
            threshold = max(window - RESERVE, window // 2) if window is not None else None
        return threshold is not None and self.state.estimate.of(self._tools_size + self._conversation.size) >= threshold

    async def _is_cut_by_window(self, reply: Reply) -> bool:
        if reply.finish_reason != "length" or not self._may_compact:
            return False
        window, tokens = await self._window(), reply.usage.prompt_tokens + reply.usage.completion_tokens
        return window is None or not tokens or tokens >= NEARLY * window

    async def _window(self) -> int | None:
        return await self._policy.window() if self._policy.window is not None else None

    def _take_note(self, reply: Reply) -> None:
        asked = self._tools_size + self._conversation.size
        estimate = self.state.estimate.calibrated(asked, message_size(reply.message), reply.usage)
        fits = (*self.state.fits, len(self._conversation.messages))[-self._policy.attempts :]
        self.state = WindowState(self.state.turns + 1, estimate, fits)

    async def _compact(self, reason: Reason, turn: int) -> None:
        self._compactions += 1
        await self._emit(Compacting(reason))
        started = trio.current_time()
        summary = await self._summarize(whole=reason != "overflow")
        duration = trio.current_time() - started
        messages, window = self._conversation.messages, self._conversation.ledger.window
        uncovered = range(summary.covered, len(messages))
        # What was asked of the model must not be lost because what came before it was too long.
        kept = [place for place in uncovered if messages[place]["role"] == "user"]
        dropped = sum(_chars(message) for place, message in enumerate(messages) if place and place not in kept)
        record = records.Compaction(
            reason=reason,
            turn=turn,
            summary=summary.text,
            summary_chars=len(summary.text),
            dropped_chars=dropped,
            turns_since_last=self.state.turns,
            attempts=summary.attempts,
            usage=summary.usage,
            duration=round(duration, 6),
            uncovered=len(uncovered),
        )
        message = prompts.summary_message(summary.text, window, len(uncovered))
        await self._conversation.compact(message, record, kept)
        self.state = WindowState(estimate=self.state.estimate.anew())
        await self._emit(
            Compacted(
                window + 1,
                summary.text,
                summary.attempts,
                summary.usage,
                duration,
                request_id=summary.request_id,
                turns=record.turns_since_last,
                dropped_chars=dropped,
            )
        )

    async def _summarize(self, *, whole: bool) -> _Summary:
        """Ask for a summary: of all (if `whole`), and of less each time that turns out to be too much."""
        messages = self._conversation.messages
        places = [count for count in reversed(self.state.fits) if count < len(messages)]
        if whole:
            places.insert(0, len(messages))
        used = Usage()
        for attempt in range(1, self._policy.attempts + 1):
            if not places:
                break
            asked: list[Message] = [*messages[: places[0]], {"role": "user", "content": prompts.SUMMARIZE}]
            try:
                reply = await self._model.reply(asked, self._tools, self._emit_retries, "none")
            except ContextOverflow:
                del places[0]
                continue
            self._spend(reply.usage)
            used += reply.usage
            await self._emit(SummaryReplied(attempt, request_id=reply.request_id))
            if reply.finish_reason == "length":
                del places[0]
            elif reply.text.strip() and not reply.tool_calls:
                return _Summary(reply.text.strip(), places[0], attempt, used, reply.request_id)
        raise CompactionFailed

    async def _emit_retries(self, event: Event) -> None:
        if isinstance(event, Retrying):  # the text is no part of the conversation that is shown
            await self._emit(event)


def _chars(message: Message) -> int:
    content = message["content"]
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    return len(content if isinstance(content, str) else "") + sum(map(len, arguments))
