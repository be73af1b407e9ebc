"""Which methods the worker answers, and which code each leads to. Nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Never

import rlm_wire
from rlm_wire.methods.events import Event, FollowEvents
from rlm_wire.methods.jobs import FollowJob, JobInfo
from rlm_wire.methods.kernels import (
    CellResult,
    Execute,
    InspectKernel,
    Interrupted,
    InterruptKernel,
    KernelVariables,
)
from rlm_wire.methods.ledger import LedgerChunk, LedgerSize, ReplicateLedger
from rlm_wire.methods.processes import CloseWorkspace, ListProcesses, ProcessList, Receipt
from rlm_wire.methods.sessions import (
    AdoptedWorkspace,
    AdoptWorkspace,
    AgentClosed,
    AgentOpened,
    CloseAgent,
    OpenAgent,
    OpenWorkspace,
    WorkspaceInfo,
)
from rlm_wire.methods.tools import Bash, BashResult, Edit, EditResult, Fetch, FetchResult, OutputChunk
from rlm_worker import tool_calls
from rlm_worker.adoption import Seat, take_seat
from rlm_worker.background import OPERATIONS, Background, Operation
from rlm_worker.sessions import Session, Worker


def worker_service(worker: Worker) -> rlm_wire.Service:
    """The service of `worker`: each peer's session has a `Seat` of its own."""

    @asynccontextmanager
    async def lifespan(peer: rlm_wire.Peer) -> AsyncIterator[Seat]:
        async with take_seat(worker, peer) as seat:
            yield seat

    service = rlm_wire.Service(lifespan)
    service.handle(OpenWorkspace)(open_workspace)
    service.handle(AdoptWorkspace)(adopt_workspace)
    service.handle(CloseWorkspace)(close_workspace)
    service.handle(ListProcesses)(list_processes)
    service.handle(OpenAgent)(open_agent)
    service.handle(CloseAgent)(close_agent)
    service.handle(Bash, stoppable=True)(bash)
    service.handle(Execute, stoppable=True)(execute)
    service.handle(InspectKernel)(inspect)
    service.handle(InterruptKernel)(interrupt)
    service.handle(ReplicateLedger)(replicate_ledger)
    service.handle(Edit)(edit)
    service.handle(Fetch)(fetch)
    service.handle(FollowJob, stoppable=True)(follow_job)
    service.handle(FollowEvents, stoppable=True)(follow_events)
    for request, operation in OPERATIONS.items():
        service.handle(request)(_in_background(operation))
    return service


async def open_workspace(request: OpenWorkspace, call: rlm_wire.IncomingCall[Never, Never]) -> WorkspaceInfo:
    return _session(call).open_workspace(request.cwd, request.env, request.quotas, request.secret)


async def adopt_workspace(request: AdoptWorkspace, call: rlm_wire.IncomingCall[Never, Never]) -> AdoptedWorkspace:
    return await _seat(call).adopt(request.workspace, request.secret)


async def close_workspace(request: CloseWorkspace, call: rlm_wire.IncomingCall[Never, Never]) -> Receipt:
    return await _session(call).close()


async def list_processes(request: ListProcesses, call: rlm_wire.IncomingCall[Never, Never]) -> ProcessList:
    session = _session(call)
    return ProcessList(await session.reaper.tier(), await session.roster.processes())


async def open_agent(request: OpenAgent, call: rlm_wire.IncomingCall[Never, Never]) -> AgentOpened:
    agent = _session(call).open_agent(request.agent, request.skills, allow_git=request.allow_git)
    return AgentOpened(agent.name)


async def close_agent(request: CloseAgent, call: rlm_wire.IncomingCall[Never, Never]) -> AgentClosed:
    return await _session(call).close_agent(request.agent)


async def bash(request: Bash, call: rlm_wire.IncomingCall[OutputChunk, Never]) -> BashResult:
    return await tool_calls.bash(_session(call), request, on_output=_live(call), stoppable=call.stoppable)


async def execute(request: Execute, call: rlm_wire.IncomingCall[OutputChunk, Never]) -> CellResult:
    session = _session(call)
    agent = session.agent(request.agent)
    with agent.call():
        kernels = await session.kernels()
        agent.has_kernel = True
        cell = kernels.cell(
            agent.name,
            request.code,
            timeout=request.timeout,
            on_output=_live(call),
            scope=request.scope,
            caller=call.scope,
            ledger_size=request.ledger_size,
        )
        with call.stoppable():
            await cell.run()
    return cell.result


async def inspect(request: InspectKernel, call: rlm_wire.IncomingCall[Never, Never]) -> KernelVariables:
    session = _session(call)
    agent = session.agent(request.agent)
    with agent.call():
        return await (await session.kernels()).inspect(agent.name) if agent.has_kernel else KernelVariables()


async def interrupt(request: InterruptKernel, call: rlm_wire.IncomingCall[Never, Never]) -> Interrupted:
    session = _session(call)
    agent = session.agent(request.agent)
    return Interrupted(agent.has_kernel and (await session.kernels()).interrupt(agent.name))


async def replicate_ledger(
    request: ReplicateLedger, call: rlm_wire.IncomingCall[LedgerSize, LedgerChunk]
) -> LedgerSize:
    agent = _session(call).agent(request.agent)
    with agent.call():
        agent.replica.expect()
        await call.send(LedgerSize(agent.replica.size))
        async for chunk in call:
            await agent.replica.append(chunk)
            await call.send(LedgerSize(agent.replica.size))
    return LedgerSize(agent.replica.size)


async def edit(request: Edit, call: rlm_wire.IncomingCall[Never, Never]) -> EditResult:
    return await tool_calls.edit(_session(call), request)


async def fetch(request: Fetch, call: rlm_wire.IncomingCall[Never, Never]) -> FetchResult:
    return await tool_calls.fetch(_session(call), request)


async def follow_job(request: FollowJob, call: rlm_wire.IncomingCall[OutputChunk, Never]) -> JobInfo:
    session = _session(call)
    with session.agent(request.agent).call():
        return await session.background.jobs.follow(request, call.send, call.stoppable)


async def follow_events(request: FollowEvents, call: rlm_wire.IncomingCall[Event, Never]) -> None:
    with call.stoppable():
        await _session(call).background.events.follow(call.send, request.after)


def _in_background(operation: Callable[[Background], Operation]) -> Callable[..., Awaitable[Any]]:
    async def answer(request: Any, call: rlm_wire.IncomingCall[Never, Never]) -> Any:
        session = _session(call)
        with session.agent(request.agent).call():
            return await operation(session.background)(request)

    return answer


def _session(call: rlm_wire.IncomingCall[Any, Any]) -> Session:
    return _seat(call).session


def _seat(call: rlm_wire.IncomingCall[Any, Any]) -> Seat:
    state: Seat = call.state
    return state


def _live(call: rlm_wire.IncomingCall[OutputChunk, Never]) -> Callable[[OutputChunk], Awaitable[None]] | None:
    return call.send if call.wants_items else None
