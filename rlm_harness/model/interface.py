"""What a model is: one async method. No I/O here, and no particular endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from rlm_harness.events import Emit, Usage

Message: TypeAlias = dict[str, Any]
"""One chat message in the shape of the chat-completions API: `role`, `content`, and what the role adds to them."""

Content: TypeAlias = str | list[dict[str, Any]]
"""What a message says: text, or the API's parts, of type `text` or `image_url`."""

ToolSchema: TypeAlias = dict[str, Any]
"""One entry of the API's `tools`."""


ToolChoice: TypeAlias = Literal["auto", "none"]
"""Whether the model may call a tool in its reply."""


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call as the model wrote it: `arguments` is unchecked text that should be a JSON object."""

    id: str
    name: str
    arguments: str


class Reply(msgspec.Struct, frozen=True):
    """One complete reply. `finish_reason` is the endpoint's: `stop`, `tool_calls`, `length`, ...

    `request_id` is what the call was called at the endpoint, "" if it was given no name.
    """

    text: str
    tool_calls: list[ToolCall] = []
    finish_reason: str = "stop"
    usage: Usage = Usage()
    request_id: str = ""

    @property
    def message(self) -> Message:
        """The reply as the assistant message that later requests carry."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


class ModelError(Exception):
    """The model gave no reply, and trying again will not help (or was tried often enough). Says what to do.

    `refused`: the endpoint will not have this request at all, so what was configured is wrong.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class ContextOverflow(ModelError):
    """The conversation is too long for the model."""

    def __init__(self, message: str) -> None:
        super().__init__(message, refused=True)


class Model(Protocol):
    """Something that answers a conversation."""

    @property
    def name(self) -> str:
        """What the endpoint calls it."""
        ...

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        emit: Emit,
        tool_choice: ToolChoice = "auto",
    ) -> Reply:
        """Answer `messages`; meanwhile hand each piece of text to `emit` as `TextDelta`, each new try as `Retrying`.

        `tool_choice` is `none` where a summary of the conversation is asked for: the tools are in the request all the
        same, since they are part of what the endpoint has cached.

        Raises ModelError; ContextOverflow where the endpoint says that it is the length.
        Cancellation: ends the request; nothing of the reply is kept.
        """
        ...
