"""Fixtures of the harness's tests: a real HTTP server that speaks chat completions from a script, and an event sink."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import h11
import msgspec
import pytest
import trio

from rlm_harness.events import Event

SomeEvent = TypeVar("SomeEvent")


class Answer(msgspec.Struct):
    """What the server sends to one request, as it is; then it closes, or keeps silent until the client leaves."""

    data: bytes
    stall: bool = False
    repeat: bytes = b""
    """What is sent behind it, again and again until the client leaves."""


class Script:
    """Makes answers. A stream's head and its chunks are valid HTTP; what they hold is the test's business."""

    @staticmethod
    def events(*payloads: dict[str, Any] | str, end: bool = True, done: bool = True) -> bytes:
        """A chunked event stream; `end` false leaves out the last chunk, as a broken connection does."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        lines = [p if isinstance(p, str) else json.dumps(p) for p in payloads] + ["[DONE]"] * done
        chunks = [f"data: {line}\n\n".encode() for line in lines]
        body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
        return head + body + b"0\r\n\r\n" * end

    @staticmethod
    def delta(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    @classmethod
    def says(cls, *pieces: str, usage: tuple[int, int] = (10, 2), finish_reason: str = "stop") -> Answer:
        deltas = [cls.delta(content=piece) for piece in pieces]
        tokens = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
        counts = {"choices": [], "usage": tokens}
        return Answer(cls.events(*deltas, cls.delta(finish_reason), counts))

    @classmethod
    def calls(cls, tool: str, arguments: dict[str, Any] | str, text: str = "", call_id: str = "call_a") -> Answer:
        """One tool call, its arguments in pieces of three characters."""
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        deltas = [cls.delta(content=text)] if text else []
        deltas.append(cls.delta(tool_calls=[{"index": 0, "id": call_id, "function": {"name": tool, "arguments": ""}}]))
        for start in range(0, len(written), 3):
            piece = {"index": 0, "function": {"arguments": written[start : start + 3]}}
            deltas.append(cls.delta(tool_calls=[piece]))
        return Answer(cls.events(*deltas, cls.delta("tool_calls")))

    @staticmethod
    def status(code: int, body: Any = None, **headers: str) -> Answer:
        content = b"" if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        lines = [f"HTTP/1.1 {code} Whatever", f"Content-Length: {len(content)}", "Content-Type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return Answer("\r\n".join(lines).encode() + b"\r\n\r\n" + content)


class ModelServer:
    """Answers one request after the other from `answers`; keeps what was asked."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.answers: list[Answer] = []
        self.by_task: dict[str, list[Answer]] = {}
        """Answers for the conversations that begin with that task, instead of `answers`."""
        self.requests: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.models: Answer | None = None
        """What `/models` says, if the endpoint has that."""
        self.lookups: list[dict[str, str]] = []
        """Headers of the requests for it, which are kept apart from all others."""
        self.connections = 0
        self.listening = trio.CancelScope()
        """Cancelled: nobody answers here any more, and the connections end."""
        self._asked = trio.Event()
        self.client_left = trio.Event()
        """Set when the client has closed a connection that was stalling."""

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):
                while await self._answer(stream):
                    pass

    async def wait_asked(self, count: int) -> None:
        """Wait until there were that many requests."""
        while len(self.requests) < count:
            await self._asked.wait()

    async def _answer(self, stream: trio.SocketStream) -> bool:
        """Serve one request; whether the connection can serve another."""
        connection, body, method = h11.Connection(h11.SERVER), b"", b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                received = await stream.receive_some()
                if not received:
                    return False
                connection.receive_data(received)
            elif isinstance(event, h11.Request):
                method = event.method
                if method == b"GET":
                    self.lookups.append({name.decode(): value.decode() for name, value in event.headers})
                    continue
                self.headers.append({name.decode(): value.decode() for name, value in event.headers})
                self.paths.append(event.target.decode())
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                break
        if method == b"GET":
            await stream.send_all((self.models or Script.status(404)).data)
            return False
        self.bodies.append(body)
        self.requests.append(json.loads(body) if body else {})
        self._asked.set()
        self._asked = trio.Event()
        answers = self.by_task.get(self.requests[-1]["messages"][1]["content"]) if self.by_task else self.answers
        answer = answers.pop(0) if answers else Script.status(400, {"error": {"message": "script is over"}})
        await stream.send_all(answer.data)
        while answer.repeat:
            await stream.send_all(answer.repeat)
        if answer.stall:
            while await stream.receive_some():
                pass
            self.client_left.set()
        return answer.data.endswith(b"0\r\n\r\n")


class Events:
    """An event sink that remembers, and lets a test wait for an event."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self._more = trio.Event()

    async def emit(self, event: Event) -> None:
        await trio.lowlevel.checkpoint()
        self.seen.append(event)
        self._more.set()
        self._more = trio.Event()

    def of(self, kind: type[SomeEvent]) -> list[SomeEvent]:
        return [event for event in self.seen if isinstance(event, kind)]

    async def wait_for(self, kind: type[SomeEvent]) -> SomeEvent:
        while not self.of(kind):
            await self._more.wait()
        return self.of(kind)[0]


class HarnessCommand:
    """`rlm-harness run` with the scripted model server, in the directory `place`/project."""

    key = "sk-command-line"

    def __init__(self, place: Path, base_url: str) -> None:
        self.place = place
        self.base_url = base_url
        (place / "project").mkdir()

    def arguments(self, *more: str) -> list[str]:
        program = [sys.executable, "-m", "rlm_harness", "run", "--model", "m", "--base-url", self.base_url]
        return [*program, "--cwd", str(self.place / "project"), *more, "go"]

    def environment(self, **changes: str) -> dict[str, str]:
        ours = {"OPENAI_API_KEY": self.key, "RLM_HOME": str(self.place / "home"), "NO_COLOR": "1"}
        return os.environ | ours | changes

    async def run(self, *more: str, **changes: str) -> subprocess.CompletedProcess[bytes]:
        return await trio.run_process(
            self.arguments(*more),
            env=self.environment(**changes),
            check=False,
            capture_stdout=True,
            capture_stderr=True,
        )


@pytest.fixture
def command(tmp_path: Path, model_server: ModelServer) -> HarnessCommand:
    return HarnessCommand(tmp_path, model_server.base_url)


@pytest.fixture(scope="module")
def worker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One worker for the tests of a module that do not end theirs: each connection has a session of its own."""
    path = tmp_path_factory.mktemp("worker") / "socket"
    command = [sys.executable, "-m", "rlm_worker", "serve", "--unix", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith(b"listening on unix:")
        yield f"unix:{path}"
        worker.terminate()


@pytest.fixture
def script() -> type[Script]:
    return Script


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def model_server() -> AsyncIterator[ModelServer]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = ModelServer(listeners[0].socket.getsockname()[1])

    async def listen() -> None:
        with server.listening:
            await trio.serve_listeners(server.serve, listeners)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        yield server
        nursery.cancel_scope.cancel()
