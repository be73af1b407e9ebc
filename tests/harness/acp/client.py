"""A client of the protocol that hides nothing: it sends what a test gives it, and keeps what comes. No tests here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import trio
from acp.schema import SessionNotification

KEY = "sk-of-the-rollout"


class Refused(Exception):
    """The answer was an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.data: dict[str, Any] = error.get("data") or {}


class Client:
    """Drives one process. All updates are checked against the protocol's own schema."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.updates: list[dict[str, Any]] = []
        self.strays: list[dict[str, Any]] = []
        """Answers to nothing that was asked."""
        self.answers: dict[int, dict[str, Any]] = {}
        self.ended = trio.Event()
        self._number = 0
        self._news = trio.Event()

    async def receive(self) -> None:
        buffer = b""
        assert self.process.stdout is not None
        async for data in self.process.stdout:
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        self.ended.set()
        self._notify()

    def _take(self, message: dict[str, Any]) -> None:
        assert message["jsonrpc"] == "2.0"
        if "method" in message:
            assert message["method"] == "session/update"
            SessionNotification.model_validate(message["params"])
            self.updates.append(message["params"]["update"])
        elif message["id"] is None:
            self.strays.append(message)
        else:
            self.answers[message["id"]] = message
        self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert not self.ended.is_set(), "the program has ended"
            await self._news.wait()

    async def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(data)

    async def send(self, method: str, **params: Any) -> int:
        """Send a request; its id."""
        self._number += 1
        await self.write(
            json.dumps({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}).encode() + b"\n"
        )
        return self._number

    async def notify(self, method: str, **params: Any) -> None:
        await self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n")

    async def answer(self, number: int) -> Any:
        await self.until(lambda: number in self.answers)
        answer = self.answers[number]
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.answer(await self.send(method, **params))

    async def prompt(self, session: str, text: str) -> Any:
        return await self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def send_prompt(self, session: str, text: str) -> int:
        return await self.send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def shown(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for so many updates of that kind; the last of them."""
        await self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [update for update in self.updates if update["sessionUpdate"] == kind]

    @property
    def reply(self) -> str:
        """What a client makes of the chunks: those of the last message."""
        text, message = "", None
        for update in self.of("agent_message_chunk"):
            if update["messageId"] != message:
                text, message = "", update["messageId"]
            text += update["content"]["text"]
        return text


def contract(base_url: str, **changes: Any) -> dict[str, Any]:
    """What verifiers 0.4.0 sends, with `changes`; those of `policy` are laid over its policy."""
    policy = {"max_total_tokens": 10_000_000} | changes.pop("policy", {})
    return {
        "session_id": "0123456789abcdef",
        "model": "m",
        "provider": {"base_url": base_url, "api_key": KEY},
        "policy": policy,
        "system_prompt_path": None,
        "append_to_system_prompt": None,
        "subagent_append_to_system_prompt": None,
        "leaf_append_to_system_prompt": None,
        "skills": ["edit"],
        "kernel_env": {},
        "search_api_key": None,
        "builtin_tools": ["ipython", "bash", "edit"],
    } | changes
