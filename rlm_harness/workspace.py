"""The workspace, seen from the harness: a worker behind a URL, and the tools of each agent in it.

The one place that makes tool calls. Use it alone to build a harness of your own.
"""

from __future__ import annotations

import codecs
import inspect
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Never, TypeAlias, TypeVar

import trio

import rlm_wire
from rlm_harness.background import AgentJobs, AgentServices, AgentWatches
from rlm_harness.callbacks import CellScopes, HarnessService
from rlm_harness.loss import WorkspaceLost, abandon, held, loss_of
from rlm_harness.replication import LedgerSource, Replication
from rlm_harness.secrets import Secret
from rlm_wire.broker.groups import one_error
from rlm_wire.errors import CallError, SessionLost
from rlm_wire.methods.base import StreamRequest
from rlm_wire.methods.events import Event, FollowEvents
from rlm_wire.methods.kernels import CellResult, Execute, InspectKernel, InterruptKernel, KernelVariables
from rlm_wire.methods.processes import CloseWorkspace, ListProcesses, ProcessList, Receipt
from rlm_wire.methods.sessions import (
    AdoptedWorkspace,
    AdoptWorkspace,
    AgentClosed,
    CloseAgent,
    OpenAgent,
    OpenWorkspace,
    Quotas,
    WorkspaceInfo,
)
from rlm_wire.methods.skills import Skills
from rlm_wire.methods.tools import Bash, BashResult, Edit, EditResult, Fetch, FetchResult, OutputChunk

if TYPE_CHECKING:
    import ssl

Result = TypeVar("Result")

OnOutput: TypeAlias = Callable[[str], object]
"""Takes live output; may be an async function, and a slow one slows down the command that it watches."""

CLOSE_TIMEOUT = 10.0
"""Seconds an agent's kernel and commands get to end, and as many a workspace; the worker's word on it may take
DEADLINE_GRACE more. Beyond that the worker is stuck or out of reach, and ends them when it loses us."""


LEASE_BORNE = 7 * 24 * 3600
"""Seconds that a workspace may be kept for us while we are away: how long it is, is the worker's to say."""


def local_worker_url() -> str:
    """The URL of a worker as a child process of this one, run by the same interpreter."""
    return f"stdio:{shlex.quote(sys.executable)} -m rlm_worker serve --stdio"


class AgentTools:
    """The four tools of one agent, and what it runs in the background. Made by `Workspace.agent`.

    Calls may run at the same time; cells of one agent run one after another. `timeout` is in seconds from the start of
    the work, None for no limit. `on_output` gets live output as text that never ends inside a character, invalid bytes
    replaced. Every method raises CallError if the worker refuses the call and SessionLost if the worker is gone, which
    says what became of this call.

    Cancellation, of all four: stops the work in the workspace and waits until it has stopped; what it had produced is
    lost. `open_bash` and `open_ipython` give the call itself, whose `cancel()` keeps the partial result.
    """

    def __init__(self, peer: rlm_wire.Peer, name: str, cells: CellScopes, replication: Replication | None) -> None:
        self._peer = peer
        self._cells = cells
        self.name = name
        self.jobs = AgentJobs(peer, name)
        self.services = AgentServices(peer, name)
        self.watches = AgentWatches(peer, name)
        self.replication = replication
        """How far the worker has the agent's ledger, if it gets one."""
        self.closed: AgentClosed | None = None
        """What ending the agent met, for instance daemons left running; None until it is known to have ended."""

    async def bash(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        on_output: OnOutput | None = None,
    ) -> BashResult:
        """Run `command` in a fresh bash, stdin empty. `cwd` is relative to the agent's; `env` is laid over its own."""
        return await self._run(self._bash(command, timeout, cwd, env), on_output)

    def open_bash(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[rlm_wire.Call[BashResult, OutputChunk, Never]]:
        """As `bash`, as an open call: iterate it for OutputChunk items, then `await call.result()`."""
        return self._peer.open(self._bash(command, timeout, cwd, env))

    async def ipython(
        self, code: str, *, timeout: float | None = None, on_output: OnOutput | None = None
    ) -> CellResult:
        """Run a cell in the agent's kernel, which starts with the first one and keeps its variables.

        The time that its callbacks take does not count.
        """
        with self._cells.open(self.name) as scope:
            return await self._run(self._execute(code, timeout, scope), on_output)

    @asynccontextmanager
    async def open_ipython(
        self, code: str, *, timeout: float | None = None
    ) -> AsyncIterator[rlm_wire.Call[CellResult, OutputChunk, Never]]:
        """As `ipython`, as an open call."""
        with self._cells.open(self.name) as scope:
            async with self._peer.open(self._execute(code, timeout, scope)) as call:
                yield call

    def held(self) -> AbstractAsyncContextManager[None]:
        """As `Workspace.held`."""
        return held(self._peer)

    async def inspect(self) -> KernelVariables:
        """The variables of the agent's kernel, with types and sizes; also while a cell runs. Runs no code of theirs."""
        return await self._peer.call(InspectKernel(self.name))

    async def interrupt(self) -> bool:
        """Interrupt the cell that runs, as Ctrl-C does, which its own call then reports. False if none runs."""
        return (await self._peer.call(InterruptKernel(self.name))).running

    async def edit(self, path: str, old: str, new: str) -> EditResult:
        """Replace the one occurrence of `old` in the file; see `rlm_wire.methods.tools.Edit` for what can go wrong."""
        return await self._peer.call(Edit(self.name, path, old, new))

    async def fetch(self, url: str, *, max_chars: int = 20_000, timeout: float = 45.0) -> FetchResult:
        """GET `url` from within the workspace, as text; see `rlm_wire.methods.tools.Fetch`."""
        return await self._peer.call(Fetch(self.name, url, max_chars, timeout))

    def _execute(self, code: str, timeout: float | None, scope: str) -> Execute:
        ledger_size = self.replication.source.size if self.replication is not None else None
        return Execute(self.name, code, timeout, scope, ledger_size)

    def _bash(self, command: str, timeout: float | None, cwd: str | None, env: Mapping[str, str] | None) -> Bash:
        return Bash(self.name, command, timeout, cwd, dict(env) if env is not None else None)

    async def _run(self, request: StreamRequest[Result, OutputChunk, Never], on_output: OnOutput | None) -> Result:
        if on_output is None:
            return await self._peer.call(request)
        async with self._peer.open(request) as call:
            return await follow(call, on_output)


async def follow(call: rlm_wire.Call[Result, OutputChunk, Never], on_output: OnOutput) -> Result:
    """Hand the live output of an open call to `on_output`, piece by piece, then give its result.

    Cancellation: stops following; the call is its opener's.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for chunk in call:
        await _hand_over(decoder.decode(chunk.data), on_output)
    await _hand_over(decoder.decode(b"", final=True), on_output)
    return await call.result()


async def _hand_over(text: str, on_output: OnOutput) -> None:
    if text:
        answer = on_output(text)
        if inspect.isawaitable(answer):
            await answer


class Workspace:
    """One worker's workspace, made by `Workspace.connect`: `info` says where it is, `agent()` opens an agent in it."""

    def __init__(
        self, peer: rlm_wire.Peer, info: WorkspaceInfo, cells: CellScopes, adopted: AdoptedWorkspace | None = None
    ) -> None:
        self.peer = peer
        self.info = info
        self.adopted = adopted
        """What there was already, if it was opened by an earlier process of this harness."""
        self._kept = {kept.agent for kept in adopted.agents} if adopted is not None else set[str]()
        self.receipt: Receipt | None = None
        """What closing it has come to; set by `close`, and at the latest when the `connect` block is left."""
        self._cells = cells

    @property
    def lost(self) -> WorkspaceLost | None:
        """That the worker was lost, why, and what had been asked of it; None while it is there, or closed in order."""
        return loss_of(self.peer)

    def held(self) -> AbstractAsyncContextManager[None]:
        """A block that ends with the workspace: once that is lost, the block is cancelled and raises WorkspaceLost.

        For whatever makes no calls meanwhile and would not find out. While the connection can still come back, nothing
        is lost. Cancellation: of the block only.
        """
        return held(self.peer)

    def abandon(self) -> None:
        """Give the connection up at once, and with it every open call, also those that wait for work to stop.

        They fail with SessionLost; the worker ends what it runs when it notices.
        """
        abandon(self.peer)

    def events(self, after: int = 0) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """What happens in the background, in order: `async with workspace.events() as events`, then iterate.

        From the event after number `after` on; see `rlm_wire.methods.events`. It goes on until the block is left or
        SessionLost is raised.
        """
        return self.peer.open(FollowEvents(after))

    async def processes(self) -> ProcessList:
        """What runs in the workspace at this moment, whose it is and with what it ends; and the containment tier.

        Raises SessionLost, or CallError("unavailable") if the worker cannot tell any more. Cancellation: harmless.
        """
        return await self.peer.call(ListProcesses())

    async def close(self, *, timeout: float | None = None) -> Receipt:
        """End all agents, and say what of theirs is proven to have ended; agents cannot be opened afterwards.

        Never fails: if the worker cannot be asked, the receipt says so, unconfirmed and `retryable`, for whoever can
        connect again. Calling it again asks again only if the receipt was `retryable`. `timeout` is in seconds, None
        for as long as it takes.
        Cancellation: the agents end all the same; `receipt` says that nothing is known.
        """
        if self.receipt is None or self.receipt.retryable:
            self.receipt = Receipt(confirmed=False, error="the worker was not heard any more", retryable=True)
            try:
                self.receipt = await self.peer.call(CloseWorkspace(), timeout=timeout)
            except SessionLost as error:
                self.receipt = Receipt(confirmed=False, error=str(error), retryable=True)
            except CallError as error:
                again = error.retryable or error.code == "deadline_exceeded"
                self.receipt = Receipt(confirmed=False, error=error.message, retryable=again)
        return self.receipt

    @staticmethod
    @asynccontextmanager
    async def connect(
        url: str,
        token: str | bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        *,
        quotas: Quotas | None = None,
        service: rlm_wire.Service | None = None,
        ssl_context: ssl.SSLContext | None = None,
        limits: rlm_wire.Limits | None = None,
        patience: rlm_wire.Patience | None = None,
        trace: rlm_wire.Trace | None = None,
        secret: Secret | None = None,
        adopt: str = "",
    ) -> AsyncIterator[Workspace]:
        """Connect to the worker at `url`; `local_worker_url()` starts one of our own, which ends with this block.

        `cwd` (None: the worker's own) is the directory of its agents and must exist there; `env` is laid over the
        environment that the worker allows its tools. `quotas` (None: the defaults) bound what its agents run in the
        background. `service` answers what cells call (`rlm.call("method", ...)`, and whatever of `rlm` the worker does
        not answer itself); `calling_agent()` tells its handlers for whom. `ssl_context` (to check the worker's
        certificate, or to show one), `limits` (its `lease`: how long a connection may be away), `patience` (how long
        silence is borne) and `trace` are as for `rlm_wire.connect`.

        With a `secret` (of 16 to 200 characters) a later process can adopt the workspace, if this one is killed and the
        worker can be reached by another connection: with the same `secret`, and with `adopt`, which is
        `workspace.info.workspace`. `workspace.adopted` is None then if it is not there any more, and this is a new one.

        Raises TransportError, LaunchError, HandshakeError or AuthenticationError if there is no connection, CallError
        if the worker refuses `cwd`, `env` or `quotas`, RuntimeError outside of Trio. Leaving the block closes the
        workspace (see `close`), within CLOSE_TIMEOUT, and then the connection; `receipt` stays.
        Cancellation: the same.
        """
        if not trio.lowlevel.in_trio_task():
            raise RuntimeError(
                "Workspace needs Trio: run it under trio.run, or use rlm_wire.blocking / rlm_wire.asyncio"
            )
        cells = CellScopes()
        ours = HarnessService(cells, service)
        limits = limits or rlm_wire.Limits(lease=LEASE_BORNE)
        async with rlm_wire.connect(
            url, ours, token, ssl_context=ssl_context, limits=limits, patience=patience, trace=trace
        ) as peer:
            adopted = await _adopt(peer, adopt, secret) if adopt and secret is not None else None
            if adopted is not None:
                info = adopted.info
            else:
                keyed = secret.reveal() if secret is not None else None
                info = await peer.call(OpenWorkspace(cwd, dict(env) if env is not None else None, quotas, keyed))
            workspace = Workspace(peer, info, cells, adopted)
            try:
                yield workspace
            finally:
                with trio.CancelScope(shield=True):
                    await workspace.close(timeout=CLOSE_TIMEOUT)

    @asynccontextmanager
    async def agent(
        self,
        name: str | None = None,
        *,
        ledger: LedgerSource | None = None,
        skills: Skills | None = None,
        allow_git: bool = True,
    ) -> AsyncIterator[AgentTools]:
        """Open an agent: a kernel (started when first used) and the root of what it may do. `name` must be new.

        In a workspace that was adopted, the agent of that name is gone on with if there is one.

        `ledger` is what `rlm.history()` gives its cells: each sees the ledger as it was when the cell was asked for.
        `skills` are functions that its cells have; remote ones are answered by the `service` given to `connect`.
        Without `allow_git`, git commands that look beyond the history of what is checked out are refused.
        Leaving the block ends its kernel and running commands and waits until they have ended, within CLOSE_TIMEOUT.
        Raises CallError or SessionLost. Cancellation: the same.
        """
        if name is not None and name in self._kept:
            self._kept.remove(name)
        else:
            name = (await self.peer.call(OpenAgent(name, skills, allow_git))).agent
        replication = Replication(self.peer, name, ledger) if ledger is not None else None
        tools = AgentTools(self.peer, name, self._cells, replication)
        try:
            with one_error():
                async with trio.open_nursery() as nursery:
                    if replication is not None:
                        nursery.start_soon(replication.run)
                    yield tools
                    nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                tools.closed = AgentClosed()
                if self.receipt is None:  # else all agents have ended
                    tools.closed = await self._close_agent(tools.name)

    async def _close_agent(self, name: str) -> AgentClosed | None:
        """None if the worker does not say in time."""
        try:
            return await self.peer.call(CloseAgent(name), timeout=CLOSE_TIMEOUT)
        except SessionLost:
            return AgentClosed()  # the worker ends its agents when it loses us
        except CallError as error:
            if error.code != "deadline_exceeded":
                raise
            return None


async def _adopt(peer: rlm_wire.Peer, workspace: str, secret: Secret) -> AdoptedWorkspace | None:
    """What there is in `workspace`; None if it is not there any more, or the worker is an older one."""
    try:
        return await peer.call(AdoptWorkspace(workspace, secret.reveal()))
    except CallError as error:
        if error.code not in ("not_found", "unimplemented"):
            raise
    return None
