"""What the client says while a prompt is being worked on: it comes with the next step, or the client is told to ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from rlm_harness.acp.jsonrpc import Answer, invalid_params
from rlm_harness.supervisor.supervisor import Supervisor
from rlm_wire.errors import CallError

NOT_RUNNING: Final = {"outcome": "promptRequired", "reason": "noRunningTurn"}

REMEMBERED: Final = 1000
"""Messages of which a repetition is known to be one."""


class _Said:
    """One message. `known`: whether it stands in the conversation, or was `missed`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.known = trio.Event()
        self.missed = False

    @property
    def entered(self) -> bool:
        return self.known.is_set() and not self.missed

    async def outcome(self) -> dict[str, Any]:
        """What the client is told, when that is known."""
        await self.known.wait()
        return {"outcome": "injected"} if self.entered else dict(NOT_RUNNING)


class Steering:
    """Of one session. A message never begins a turn, and stops no tool."""

    def __init__(self) -> None:
        self._supervisor: Supervisor | None = None
        self._said: dict[str, _Said] = {}
        self._turn: list[_Said] = []
        self._carried: list[str] = []

    @contextmanager
    def turn(self, supervisor: Supervisor) -> Iterator[list[str]]:
        """Around the work on a prompt: messages are taken meanwhile. Gives those that a failed prompt has left behind.

        If this one fails, too, the conversation is as it was before, and what was said in it goes with the next.
        """
        carried, self._carried = self._carried, []
        self._supervisor, self._turn = supervisor, []
        try:
            yield carried
        except BaseException:
            self._carried = carried + [said.text for said in self._turn if said.entered]
            raise
        finally:
            self.end()

    def end(self) -> None:
        """The turn is over: what has not been heard by now will not be."""
        if self._supervisor is not None:
            self._supervisor.tree.root.awaited.clear()
        self._supervisor = None
        for said in self._turn:
            if not said.known.is_set():
                said.missed = True
                said.known.set()

    async def forget(self, supervisor: Supervisor) -> None:
        """Record that what was not heard is not to be heard later either: the client was told to say it again."""
        await supervisor.mail.fail_instructions(supervisor.tree.root, "no_running_turn")

    def say(self, text: str, message_id: str | None) -> Answer:
        """Say `text`; what is returned waits until it is in the conversation, or will not be.

        The same id is the same message. Raises RpcError.
        """
        said = self._said.get(message_id) if message_id is not None else None
        if said is not None and said.text != text:
            raise invalid_params("messageId: was another message's")
        if said is None or said.missed:  # now is another time
            if self._supervisor is None:
                return _not_running
            return self._say(self._supervisor, text, message_id)
        return said.outcome

    def _say(self, supervisor: Supervisor, text: str, message_id: str | None) -> Answer:
        root = supervisor.tree.root
        try:
            instruction = supervisor.mail.queue(root, "steer", text)
        except CallError as error:
            raise invalid_params(f"prompt: {error.message}") from None
        said = _Said(text)
        root.awaited[instruction.id] = said.known
        self._turn.append(said)
        if message_id is not None:
            self._said[message_id] = said
            while len(self._said) > REMEMBERED:
                del self._said[next(iter(self._said))]

        async def outcome() -> dict[str, Any]:
            if not said.known.is_set():
                await supervisor.mail.note(root, instruction)
            return await said.outcome()

        return outcome


async def _not_running() -> dict[str, Any]:
    return dict(NOT_RUNNING)
