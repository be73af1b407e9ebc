"""The methods of the protocol, for one client on standard input and output, and its sessions."""

from __future__ import annotations

import signal
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, TypeVar

import msgspec
import pydantic
import trio
from acp.schema import (
    AgentCapabilities,
    CancelNotification,
    CloseSessionRequest,
    HttpMcpServer,
    Implementation,
    InitializeResponse,
    McpCapabilities,
    McpServerStdio,
    NewSessionRequest,
    NewSessionResponse,
    PromptCapabilities,
    PromptRequest,
    SessionCapabilities,
    SessionCloseCapabilities,
)

from rlm_harness.acp import contract as contracts
from rlm_harness.acp.contract import Contract, ContractError
from rlm_harness.acp.jsonrpc import (
    INVALID_REQUEST,
    LAST_GRACE,
    METHOD_NOT_FOUND,
    NOT_FOUND,
    Answer,
    ClientLost,
    Connection,
    Message,
    RpcError,
    invalid_params,
)
from rlm_harness.acp.opening import take_order
from rlm_harness.acp.prompts import content_of
from rlm_harness.acp.session import Session
from rlm_harness.acp.updates import Update, notification
from rlm_harness.mcp_servers.configuration import SERVERS_LIMIT, HttpServer, McpServer, StdioServer, fault
from rlm_harness.secrets import Secret
from rlm_wire import __version__
from rlm_wire.broker.groups import one_error
from rlm_wire.transports.stdio import StdioTransport

PROTOCOL_VERSION: Final = 1

SESSIONS_LIMIT: Final = 64
"""Sessions that are open at the same time: each has a workspace of its own."""

REQUESTS_LIMIT: Final = 256
"""Requests that have no answer yet, but those that close a session, for which there is as much room again."""

FAULTS_TOLD: Final = 20
"""What is wrong with the parameters of a request, at most so many times."""

CLOSED_LIMIT: Final = 1000
"""Closed sessions that are remembered, for those who close them again."""

Params = TypeVar("Params", bound=pydantic.BaseModel)
Own = TypeVar("Own", bound=msgspec.Struct)


class _Steering(msgspec.Struct, rename="camel"):
    """The parameters of `_session/steering`, which is no method of the protocol itself."""

    session_id: str
    prompt: list[_SteeringBlock]
    message_id: str | None = None


class _SteeringBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Version(msgspec.Struct, rename="camel"):
    protocol_version: int


class Server:
    """`defaults` is the contract of sessions whose client names none; None: such are refused."""

    def __init__(self, defaults: Contract | None) -> None:
        self._defaults = defaults
        self._initialized = False
        self._sessions: dict[str, Session] = {}
        self._opening = 0
        self._closed: OrderedDict[str, dict[str, Any]] = OrderedDict()
        """By their ids, how the sessions stood that were closed last."""
        self._methods: dict[str, Callable[[Message], Answer]] = {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/prompt": self._prompt,
            "session/cancel": self._cancel,
            "session/close": self._close,
            "_session/steering": self._steer,
        }

    async def serve(self) -> None:
        """Serve until the client leaves or SIGTERM or SIGINT comes; then end all sessions, in bounded time."""
        async with StdioTransport().listen("") as listener:
            self._connection = Connection(await listener.accept(), self._admit)
            with one_error():
                async with trio.open_nursery() as self._nursery:
                    try:
                        with trio.CancelScope() as serving:
                            await self._nursery.start(self._end_at_signal, serving)
                            await self._connection.run()
                    except* ClientLost:
                        pass  # as if it had left in order
                    await self._end()
                    self._nursery.cancel_scope.cancel()

    async def _end_at_signal(self, serving: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                self._connection.abandon(LAST_GRACE)  # serving may be within a message that nobody reads
                serving.cancel()

    async def _end(self) -> None:
        """Close all sessions: in order, if that takes no longer than LAST_GRACE, else at once."""
        sessions = list(self._sessions.values())
        with trio.move_on_after(LAST_GRACE):
            async with trio.open_nursery() as nursery:
                for session in sessions:
                    nursery.start_soon(session.close())
        self._connection.abandon()
        for session in sessions:
            session.leave()
        for session in sessions:
            await session.close()()

    def _admit(self, message: Message) -> Answer:
        method = self._methods.get(message.method)
        if message.id is None and message.method != "session/cancel":
            return _nothing  # unknown notifications are to be ignored, and of a request nobody could be told what came
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {message.method[:100]!r}")
        if not self._initialized and message.method != "initialize":
            raise RpcError(INVALID_REQUEST, "initialize comes first")
        limit = REQUESTS_LIMIT * (2 if message.method == "session/close" else 1)
        if message.id is not None and self._connection.under_way >= limit:
            raise RpcError(INVALID_REQUEST, f"there are {limit} requests without an answer already")
        return method(message)

    def _initialize(self, message: Message) -> Answer:
        _decode(message, _Version)
        self._initialized = True
        response = InitializeResponse(
            protocol_version=PROTOCOL_VERSION,  # a client that cannot speak it leaves
            agent_capabilities=AgentCapabilities(
                load_session=False,
                prompt_capabilities=PromptCapabilities(image=True, audio=False, embedded_context=True),
                mcp_capabilities=McpCapabilities(http=find_spec("mcp") is not None, sse=False),
                session_capabilities=SessionCapabilities(close=SessionCloseCapabilities()),
            ),
            agent_info=Implementation(name="rlm", title="RLM", version=__version__),
            auth_methods=[],
            field_meta={
                "ai.prime.rlm/contract-v1": True,
                "ai.prime.rlm/execution-v1": True,
                "steering": {"supported": True},
            },
        )
        return partial(_same, response.model_dump(mode="json", by_alias=True, exclude_none=True))

    def _new(self, message: Message) -> Answer:
        request = _parse(message, NewSessionRequest)
        servers = _servers(request, message)
        if request.additional_directories:
            raise invalid_params("additionalDirectories: are not supported")
        if len(self._sessions) + self._opening >= SESSIONS_LIMIT:
            raise RpcError(INVALID_REQUEST, f"there are {SESSIONS_LIMIT} sessions already: close one first")
        contract, unknown = self._contract(request)
        self._opening += 1

        async def open_session() -> dict[str, Any]:
            try:
                order = await trio.to_thread.run_sync(take_order, contract, request.cwd, servers)
            except ContractError as error:
                raise invalid_params(*error.faults) from None
            finally:
                self._opening -= 1
            session = Session(order, self._show)
            self._sessions[session.id] = session
            self._nursery.start_soon(self._run, session)
            meta = {"ai.prime.rlm/contract-v1": {"ignored": unknown}}
            response = NewSessionResponse(session_id=session.id, field_meta=meta)
            return response.model_dump(mode="json", by_alias=True, exclude_none=True)

        return open_session

    def _contract(self, request: NewSessionRequest) -> tuple[Contract, list[str]]:
        raw = (request.field_meta or {}).get(contracts.KEY)
        if raw is None and self._defaults is not None:
            return self._defaults, []
        if raw is None:
            raise invalid_params(f"_meta.{contracts.KEY}: is missing; without it, rlm-harness acp needs --model")
        try:
            return contracts.check_untrusted(raw)
        except ContractError as error:
            raise invalid_params(*error.faults) from None

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        except* ClientLost:
            pass  # `serve` knows
        finally:
            del self._sessions[session.id]
            self._closed[session.id] = session.meta
            while len(self._closed) > CLOSED_LIMIT:
                self._closed.popitem(last=False)

    def _prompt(self, message: Message) -> Answer:
        request = _parse(message, PromptRequest)
        return self._session(request.session_id).prompt(content_of(request.prompt))

    def _cancel(self, message: Message) -> Answer:
        self._session(_parse(message, CancelNotification).session_id).cancel()
        return _nothing

    def _close(self, message: Message) -> Answer:
        session_id = _parse(message, CloseSessionRequest).session_id
        if (meta := self._closed.get(session_id)) is not None:
            return partial(_same, {"_meta": meta})
        return self._session(session_id).close()

    def _steer(self, message: Message) -> Answer:
        asked = _decode(message, _Steering)
        text = "\n\n".join(block.text for block in asked.prompt)
        if not text.strip():
            raise invalid_params("prompt: is empty")
        if asked.message_id is not None and not 0 < len(asked.message_id) <= 200:
            raise invalid_params("messageId: must have 1 to 200 characters")
        return self._session(asked.session_id).steering.say(text, asked.message_id)

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None and session_id in self._closed:
            raise RpcError(INVALID_REQUEST, "the session is closed", {"sessionId": session_id})
        if session is None:
            raise RpcError(NOT_FOUND, "there is no such session", {"sessionId": session_id[:100]})
        return session

    async def _show(self, session: str, update: Update) -> None:
        await self._connection.notify("session/update", notification(session, update))


def _decode(message: Message, kind: type[Own]) -> Own:
    """The parameters of a method that the protocol's own types do not tell enough of."""
    try:
        return msgspec.json.decode(message.params, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise invalid_params(str(error)) from None


def _parse(message: Message, kind: type[Params]) -> Params:
    try:
        return kind.model_validate_json(message.params)
    except pydantic.ValidationError as error:
        told = error.errors(include_url=False, include_context=False, include_input=False)
        faults = [f"{'.'.join(map(str, fault['loc'])) or 'params'}: {fault['msg']}" for fault in told[:FAULTS_TOLD]]
        raise invalid_params(*faults, *[f"and {len(told) - FAULTS_TOLD} more"] * (len(told) > FAULTS_TOLD)) from None


def _servers(request: NewSessionRequest, message: Message) -> list[McpServer]:
    """The MCP servers that were asked for. Raises RpcError: none is left out because it is wrong."""
    asked = msgspec.json.decode(message.params).get("mcpServers") or []
    if len(asked) != len(request.mcp_servers):
        raise invalid_params("mcpServers: there is one that does not fit the protocol")
    if len(asked) > SERVERS_LIMIT:
        raise invalid_params(f"mcpServers: a session can have {SERVERS_LIMIT}, not {len(asked)}")
    servers: list[McpServer] = []
    for place, server in enumerate(request.mcp_servers):
        match server:
            case HttpMcpServer(name=name, url=url, headers=headers):
                servers.append(HttpServer(name, url, {header.name: Secret(header.value) for header in headers}))
            case McpServerStdio(name=name, command=command, args=arguments, env=env):
                servers.append(StdioServer(name, command, arguments, {each.name: Secret(each.value) for each in env}))
            case _:
                raise invalid_params(f"mcpServers.{place}: servers of this type are not supported")
    faults = [f"mcpServers.{place}.{wrong}" for place, server in enumerate(servers) if (wrong := fault(server))]
    if faults:
        raise invalid_params(*faults)
    return servers


async def _same(result: dict[str, Any]) -> dict[str, Any]:
    return result


async def _nothing() -> dict[str, Any]:
    return {}
