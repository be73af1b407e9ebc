"""What the worker keeps for one harness while its session lasts: directory, environment, agents, kernels.

No wire here: `service` says which calls lead where. Whatever an agent runs belongs to the agent, and ends with it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio

from rlm_wire import __version__
from rlm_wire.broker.groups import one_error
from rlm_wire.broker.peer import Peer
from rlm_wire.errors import CallError
from rlm_wire.methods.names import check_name
from rlm_wire.methods.processes import Receipt
from rlm_wire.methods.sessions import AgentClosed, KeptAgent, Quotas, WorkspaceInfo
from rlm_wire.methods.skills import Skills
from rlm_worker.background import Background, open_background
from rlm_worker.callbacks import cell_callbacks
from rlm_worker.environment import checked_environment
from rlm_worker.git_guard.shell import refusal
from rlm_worker.kernel import Callbacks, KernelHost, Kernels, open_kernels
from rlm_worker.ledger import Replica
from rlm_worker.paths import checked_path
from rlm_worker.processes import Reaper, Survivor
from rlm_worker.roster import Roster

AGENT_LIMIT = 1024
"""Agents that one session may have open: each may have a kernel, and that is a process of several MiB."""

SECRET_LENGTHS = range(16, 201)


class Worker:
    """What all sessions share. `cwd` and `env` are where and with what agents work unless their session says else."""

    def __init__(self, reaper: Reaper, kernel_host: KernelHost, cwd: str, env: Mapping[str, str]) -> None:
        self.reaper = reaper
        self.kernel_host = kernel_host
        self.cwd = cwd
        self.env = dict(env)
        self.adoptable: dict[str, Session] = {}
        """By the id of the workspace."""
        self.adopting = trio.Lock()


class Agent:
    """One agent's running calls, and its ledger."""

    def __init__(self, name: str, temporary: str | None, skills: Skills, allow_git: bool) -> None:
        self.name = name
        self.skills = skills
        self.allow_git = allow_git
        self.replica = Replica(temporary)
        self.has_kernel = False
        self.closed = False
        self._calls: dict[trio.CancelScope, trio.Event] = {}
        self._commands = 0

    @contextmanager
    def call(self, *, command: bool = False) -> Iterator[None]:
        """Around the work of one call: closing the agent cancels it, and CallError("cancelled") is what comes of it.

        `command`: it runs a process of its own.
        """
        ended = trio.Event()
        self._commands += command
        with trio.CancelScope() as scope:
            self._calls[scope] = ended
            try:
                yield
            finally:
                del self._calls[scope]
                self._commands -= command
                ended.set()
        if scope.cancelled_caught:
            raise CallError("cancelled", f"the agent {self.name!r} was closed")

    async def stop_calls(self) -> int:
        """Cancel all calls and wait until they have ended; returns how many commands there were among them."""
        calls, commands = dict(self._calls), self._commands
        for scope in calls:
            scope.cancel("the agent is closing")
        for ended in calls.values():
            await ended.wait()
        return commands


class Session:
    """One harness's workspace. Made by `open_session`; whose it is, is the business of `adoption`."""

    background: Background
    """Jobs, services and watches."""
    callbacks: Callbacks
    """What its cells may call."""

    def __init__(self, worker: Worker, harness: Peer, nursery: trio.Nursery) -> None:
        self.harness = harness
        self.reaper = worker.reaper
        self.roster = Roster(worker.reaper)
        self.cwd = worker.cwd
        self.env = worker.env
        self._worker = worker
        self._nursery = nursery
        self._agents: dict[str, Agent] = {}
        self._named = 0
        self._kernels: Kernels | None = None
        self._opening_kernels = trio.Lock()
        self._leaving = trio.Event()
        self._closing = trio.Lock()
        self._closed = False
        self._receipt: Receipt | None = None
        self._fallback: str | None = None
        self.given_up = trio.Event()
        """Nobody works with it any more."""
        self._id = ""
        self._digest = b""

    def hand_to(self, harness: Peer) -> None:
        """From now on it is that one's."""
        self.harness = self.callbacks.harness = harness

    def give_up(self, harness: Peer) -> None:
        """It is no longer needed, if it is still that one's."""
        if self.harness is harness:
            self._worker.adoptable.pop(self._id, None)
            self.given_up.set()

    def open_workspace(
        self,
        cwd: str | None,
        env: Mapping[str, str] | None,
        quotas: Quotas | None = None,
        secret: str | None = None,
    ) -> WorkspaceInfo:
        """Set directory, environment and quotas, and the secret for its adoption.

        Raises CallError: `not_found`, `invalid_argument`, `failed_precondition`.
        """
        self.check_unused()
        if secret is not None and len(secret) not in SECRET_LENGTHS:
            raise CallError("invalid_argument", f"a secret has {SECRET_LENGTHS[0]} to {SECRET_LENGTHS[-1]} characters")
        if cwd is not None:
            self.cwd = os.path.normpath(_directory(Path(self._worker.cwd, checked_path(cwd))))
        checked_environment(env or {})
        self.background.grant(quotas or Quotas())
        self.env = {**self._worker.env, **(env or {})}
        self._worker.adoptable.pop(self._id, None)
        self._id, self._digest = (secrets.token_hex(16), _digest(secret)) if secret is not None else ("", b"")
        if self._id:
            self._worker.adoptable[self._id] = self
        return self.info()

    def check_unused(self) -> None:
        """CallError("failed_precondition") if there are agents already."""
        if self._agents:
            raise CallError("failed_precondition", "this session has agents: open the workspace before the first one")

    def is_secret(self, secret: str) -> bool:
        """Whether the workspace was opened with that secret."""
        return hmac.compare_digest(self._digest, _digest(secret))

    def info(self) -> WorkspaceInfo:
        """What its harness is told of it."""
        machine = os.uname()
        return WorkspaceInfo(
            cwd=self.cwd,
            worker=f"rlm-worker {__version__}",
            pid=os.getpid(),
            platform=f"{machine.sysname} {machine.release} {machine.machine}",
            python=platform.python_version(),
            workspace=self._id,
        )

    def kept_agents(self) -> list[KeptAgent]:
        """The agents that are open."""
        return [KeptAgent(agent.name, agent.has_kernel) for agent in self._agents.values() if not agent.closed]

    def open_agent(self, name: str | None, skills: Skills | None = None, *, allow_git: bool = True) -> Agent:
        """Open an agent; None lets us name it. Raises CallError if the name is taken or no name at all."""
        if self._closed:
            raise CallError("failed_precondition", "the workspace is closed: connect anew for a fresh session")
        if name is None:
            self._named += 1
            name = f"agent-{self._named}"
        check_name(name, "an agent's")
        if name in self._agents:
            raise CallError("failed_precondition", f"there is an agent {name!r} already")
        if len(self._agents) >= AGENT_LIMIT:
            raise CallError("resource_exhausted", f"a session has {AGENT_LIMIT} agents at most: close one first")
        agent = self._agents[name] = Agent(name, self.env.get("TMPDIR"), skills or Skills(), allow_git)
        self._nursery.start_soon(self._warm_kernels)
        return agent

    def agent(self, name: str) -> Agent:
        """The open agent of that name. Raises CallError("not_found")."""
        agent = self._agents.get(name)
        if agent is None or agent.closed:
            raise CallError("not_found", f"there is no agent {name!r}: open it first")
        return agent

    async def close_agent(self, name: str) -> AgentClosed:
        """End the agent's kernel and running commands; what they have left runs on and is named.

        Cancellation: they end all the same, but perhaps after this has returned.
        """
        agent = self.agent(name)
        agent.closed = True
        try:
            with suppress(CallError):  # without a reaper, the receipt will say so
                await self.roster.expect_end(name)
            if self._kernels is not None:
                await self._kernels.close(name)
            stopped = await agent.stop_calls()
            stopped_jobs, services_left = await self.background.close_agent(name)
        finally:
            self._agents.pop(name, None)
            agent.replica.close()
        notices = [f"Still running: {survivor}" for survivor in await self._left_by(name)]
        return AgentClosed(stopped + stopped_jobs + agent.has_kernel, services_left + notices)

    async def _left_by(self, agent: str) -> list[Survivor]:
        with suppress(CallError):
            return sorted(
                Survivor(process.pid, process.start_time, process.command)
                for process in await self.roster.processes()
                if process.agent == agent and process.kind in ("background job", "daemon")
            )
        return []

    async def close(self) -> Receipt:
        """End all agents, and look afterwards what is alive.

        Cancellation: they end all the same, but there is no receipt; call it again.
        """
        async with self._closing:
            self._closed = True
            self._worker.adoptable.pop(self._id, None)
            if self._receipt is None or self._receipt.retryable:
                async with trio.open_nursery() as nursery:
                    for name in list(self._agents):
                        nursery.start_soon(self._close_if_open, name)
                self._receipt = await self.roster.receipt()
            return self._receipt

    async def _close_if_open(self, name: str) -> None:
        agent = self._agents.get(name)
        if agent is not None and not agent.closed:
            await self.close_agent(name)

    async def kernels(self) -> Kernels:
        """The kernels of this session, which live as long as it does."""
        async with self._opening_kernels:
            kernels = self._kernels
            if kernels is None:
                kernels = self._kernels = await self._nursery.start(self._keep_kernels)
            return kernels

    async def end_kernels(self) -> None:
        """End them all, busy ones at once: nobody reads any more what their cells say."""
        if self._kernels is not None:
            await self._kernels.close_all()

    async def _warm_kernels(self) -> None:
        with suppress(CallError):  # the first cell will say so
            await self._worker.kernel_host.warm()

    async def _keep_kernels(self, task_status: trio.TaskStatus[Kernels]) -> None:
        async with open_kernels(
            self._worker.kernel_host,
            self.reaper,
            cwd=self.cwd,
            env=self.env,
            callbacks=self.callbacks,
            roster=self.roster,
            outfit=self._outfit,
        ) as kernels:
            task_status.started(kernels)
            await self._leaving.wait()

    def _outfit(self, agent: str) -> tuple[Skills, bool]:
        opened = self.agent(agent)
        return opened.skills, not opened.allow_git

    def check_command(self, agent: str, command: str) -> None:
        """Raises CallError("permission_denied") if git may not be used for that by the agent."""
        if not self.agent(agent).allow_git and (reason := refusal(command)) is not None:
            raise CallError("permission_denied", reason)

    def fallback_directory(self) -> str:
        """Where commands run when the agent's own directory is gone: an empty one, in which they can do no harm."""
        if self._fallback is None or not Path(self._fallback).is_dir():
            import tempfile  # rarely needed, and slow to import

            try:
                self._fallback = tempfile.mkdtemp(prefix="fallback-", dir=self.env.get("TMPDIR"))
            except OSError:  # a full or read-only disk
                return "/"
        return self._fallback

    def close_ledgers(self) -> None:
        """For when nothing reads them any more."""
        for agent in self._agents.values():
            agent.replica.close()

    async def leave(self) -> None:
        """End what the session still has: its calls have ended already."""
        self._leaving.set()
        if self._fallback is not None:
            import shutil

            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(shutil.rmtree, self._fallback, True)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _directory(path: Path) -> Path:
    try:
        if path.is_dir():
            return path
        problem = "is not a directory" if path.exists() else "does not exist"
    except OSError as error:  # a name that is too long, or on the way a directory that is not for us
        problem = f"cannot be entered ({error.strerror})"
    raise CallError("not_found", f"the directory {path} {problem} on the worker's machine")


@asynccontextmanager
async def open_session(worker: Worker, harness: Peer) -> AsyncIterator[Session]:
    """A session's state, for the harness at the other end; leaving ends what it runs. Cancellation: kills it."""
    with ExitStack() as at_last, one_error():
        async with trio.open_nursery() as nursery:
            session = Session(worker, harness, nursery)
            at_last.callback(session.close_ledgers)
            async with open_background(session) as session.background:
                session.callbacks = cell_callbacks(session)
                try:
                    yield session
                finally:
                    await session.leave()
