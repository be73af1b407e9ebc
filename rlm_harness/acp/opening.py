"""A contract made real: its model, its skills and its agents, in the workspace that it names."""

from __future__ import annotations

import errno
import importlib
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path, PurePath, PurePosixPath
from typing import Final

import msgspec
import trio

from rlm_harness.acp.contract import Contract, ContractError
from rlm_harness.commands.options import DEFAULT_BASE_URL
from rlm_harness.compaction import CompactionPolicy
from rlm_harness.decisions import ToolPolicy
from rlm_harness.events import Emit
from rlm_harness.mcp_servers.configuration import McpServer
from rlm_harness.model.chat import ChatModel, completions_url, open_chat_model
from rlm_harness.model.retries import RetryPolicy
from rlm_harness.opening import Agents, Task, open_agents
from rlm_harness.prompts import Guidance
from rlm_harness.rendering import MAX_RESULT
from rlm_harness.secrets import Secret, UserError
from rlm_harness.skills.opening import open_skills
from rlm_harness.skills.table import SkillTable
from rlm_harness.supervisor.policy import Policy
from rlm_wire.transports.tcp import join_address

REQUEST_HEADER: Final = "X-ACP-Model-Request-ID"

ROLE_LIMIT: Final = 1 << 20
"""Bytes of a file with a system prompt: more fills a model's window by itself."""


class Order(msgspec.Struct, frozen=True):
    """What a session is opened with. `cwd` is the client's, `role` what stands in the file of `system_prompt_path`."""

    contract: Contract
    cwd: str
    role: str | None = None
    servers: Sequence[McpServer] = ()

    def __repr__(self) -> str:
        return f"<order of {self.contract.session_id}>"


def take_order(contract: Contract, cwd: str, servers: Sequence[McpServer]) -> Order:
    """Check what the contract says of things outside of it. Blocking. Raises ContractError."""
    faults: list[str] = []
    role = None
    if contract.system_prompt_path is not None:
        try:
            role = _read_role(Path(cwd, contract.system_prompt_path))
        except (OSError, UnicodeError, ValueError) as error:
            faults.append(f"system_prompt_path: cannot be read: {getattr(error, 'strerror', None) or 'no text'}")
    try:
        completions_url(contract.provider.base_url or DEFAULT_BASE_URL)
    except UserError as error:
        faults.append(f"provider.base_url: {error}")
    faults += _places_wrong(contract, cwd)
    if faults:
        raise ContractError(faults)
    return Order(contract, cwd, role, servers)


@asynccontextmanager
async def open_order(
    order: Order, ledger: str, emit: Emit, connected: Callable[[Callable[[], None]], AbstractContextManager[None]]
) -> AsyncIterator[Agents]:
    """Open what was ordered, with a ledger of that name; see `open_agents`.

    Raises UserError, WireError, and what `emit` raises.
    """
    contract, provider = order.contract, order.contract.provider
    if order.servers:  # this takes most of a second
        await trio.to_thread.run_sync(importlib.import_module, "rlm_harness.mcp_servers.servers")
    token = contract.execution_tcp.token.encode() if contract.execution_tcp is not None else None
    search_key = Secret(contract.search_api_key) if contract.search_api_key else None
    async with (
        open_chat_model(
            contract.model,
            provider.base_url or DEFAULT_BASE_URL,
            Secret(provider.api_key),
            policy=RetryPolicy(attempts=provider.max_retries + 1),
            headers=provider.headers,
            request_header=REQUEST_HEADER,
        ) as model,
        open_skills(contract.skills, order.servers, key=search_key) as skills,
        open_agents(
            _task(order, ledger, model, skills), model, emit, token=token, skills=skills, connected=connected
        ) as agents,
    ):
        yield agents


def _task(order: Order, ledger: str, model: ChatModel, skills: SkillTable) -> Task:
    contract, limits = order.contract, order.contract.policy
    return Task(
        text="",
        name=ledger,
        url=_url(contract),
        cwd=contract.execution_cwd or (order.cwd if _is_here(contract) else None),
        env=contract.kernel_env,
        endpoint=contract.provider.base_url or DEFAULT_BASE_URL,
        policy=Policy(
            max_depth=limits.max_depth,
            max_subagents=limits.max_subagent_calls,
            max_turns=limits.max_total_turns,
            max_tokens=limits.max_total_tokens,
            max_agent_tokens=limits.max_tokens,
            max_model_calls=limits.max_concurrent_subagents,
            skills=skills.skills(),
            allow_git=limits.allow_git,
            guidance=Guidance(
                role=order.role,
                append=contract.append_to_system_prompt,
                append_below=contract.subagent_append_to_system_prompt,
                append_leaves=contract.leaf_append_to_system_prompt,
                delegation=limits.delegation_prompt,
            ),
        ),
        tool_policy=ToolPolicy(
            tools=("ipython",) if contract.builtin_tools is None else tuple(contract.builtin_tools),
            timeout=limits.exec_timeout,
            max_result=limits.max_tool_output_bytes or MAX_RESULT,
        ),
        compaction=CompactionPolicy(
            summarize_at=limits.summarize_at_tokens,
            window=model.context_window,
            most=limits.max_compactions if limits.compaction else 0,
            attempts=limits.max_compaction_attempts,
        ),
    )


def _read_role(path: Path) -> str:
    if not path.is_file():  # a pipe would be waited for, for ever
        raise FileNotFoundError(errno.ENOENT, "there is no such file")
    with path.open("rb") as file:
        text = file.read(ROLE_LIMIT + 1)
    if len(text) > ROLE_LIMIT:
        raise OSError(errno.EFBIG, f"the file is larger than {ROLE_LIMIT >> 20} MiB")
    return text.decode().rstrip("\n")


def _places_wrong(contract: Contract, cwd: str) -> list[str]:
    execution_cwd = contract.execution_cwd
    if not PurePath(cwd).is_absolute():
        return ["cwd: must be an absolute path"]
    if execution_cwd is not None and not PurePosixPath(execution_cwd).is_absolute():
        return ["execution_cwd: must be an absolute path"]
    if _is_here(contract) and not _is_directory(execution_cwd or cwd):
        return ["execution_cwd: there is no such directory" if execution_cwd else "cwd: there is no such directory"]
    return []


def _is_directory(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except OSError:  # it is too long, or behind what we may not look into
        return False


def _is_here(contract: Contract) -> bool:
    """The worker is a child process of ours."""
    return contract.execution_command is None and contract.execution_tcp is None


def _url(contract: Contract) -> str | None:
    if contract.execution_command is not None:
        return f"stdio:{shlex.join(contract.execution_command)}"
    tcp = contract.execution_tcp
    return join_address(tcp.host, tcp.port, scheme="tcp") if tcp is not None else None
