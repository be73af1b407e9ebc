"""What a client asks of a session: the object `ai.prime.rlm/runtime-v1` of `session/new`, checked field by field. Pure.

Every field of it is applied or refused. Fields that nobody knows here are ignored, and the client is told which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from rlm_harness.compaction import MAX_ATTEMPTS
from rlm_harness.tools import EXEC_TIMEOUT

KEY: Final = "ai.prime.rlm/runtime-v1"

MOST_SHOWN: Final = 512 * 1024
"""Bytes of a tool's result that can be shown at most: so much is kept of each."""

LONGEST_TIMEOUT: Final = 7 * 24 * 3600
"""Seconds that one command or cell may be given at most."""

COMMAND_LIMIT: Final = 64 * 1024
"""Characters of `execution_command`, all words together."""

_OUR_HEADERS: Final = {
    "idempotency-key",
    "x-stainless-retry-count",
    "x-acp-model-request-id",
    "authorization",
    "content-length",
    "transfer-encoding",
}
"""Headers that the harness sets itself."""

_UNSUPPORTED: Final = (
    "harness",
    "prompt_overrides",
    "policy.compaction_fanout",
    "policy.compaction_tail_tokens",
    "policy.compaction_prompt_tokens",
)
"""Fields of which we know what they mean, and which cannot be applied here."""

Text = Annotated[str, msgspec.Meta(min_length=1)]
Seconds = Annotated[int, msgspec.Meta(gt=0, le=LONGEST_TIMEOUT)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(gt=0)]
ToolName = Literal["bash", "edit", "fetch", "ipython"]
SkillName = Literal["bash", "edit", "fetch", "search"]
Kind = TypeVar("Kind", bound=msgspec.Struct)


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenAI-compatible endpoint. `base_url` None: OpenAI's own."""

    base_url: Annotated[str, msgspec.Meta(max_length=4096)] | None
    api_key: Text
    headers: dict[str, str] = {}
    max_retries: Count = 5

    def __repr__(self) -> str:
        return f"<endpoint {self.base_url}>"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Turns, tokens and calls are counted for the whole tree of agents, but `max_tokens`, which is each agent's own."""

    max_depth: Count = 1
    delegation_prompt: bool = False
    max_total_turns: Positive | None = None
    max_total_tokens: Positive | None = 1_000_000
    max_tool_output_bytes: Annotated[int, msgspec.Meta(gt=0, le=MOST_SHOWN)] | None = None
    exec_timeout: Seconds = EXEC_TIMEOUT
    max_tokens: Positive | None = None
    compaction: bool = True
    summarize_at_tokens: Positive | None = None
    max_compactions: Positive | None = None
    max_compaction_attempts: Positive = MAX_ATTEMPTS
    max_concurrent_subagents: Positive = 4
    max_subagent_calls: Positive | None = None
    allow_git: bool = False


class Tcp(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that listens on a private network."""

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    port: Annotated[int, msgspec.Meta(gt=0, lt=65536)]
    token: Text

    def __repr__(self) -> str:
        return f"<worker at {self.host}:{self.port}>"


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """See the fields' names; `execution_*` say where the workspace is, if it is not here."""

    session_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}\Z")]
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    provider: Provider
    policy: Limits
    system_prompt_path: str | None
    append_to_system_prompt: str | None
    subagent_append_to_system_prompt: str | None = None
    leaf_append_to_system_prompt: str | None = None
    skills: list[SkillName]
    builtin_tools: list[ToolName] | None = None
    kernel_env: dict[str, str]
    search_api_key: str | None
    execution_cwd: str | None = None
    execution_command: Annotated[list[Text], msgspec.Meta(min_length=1)] | None = None
    execution_tcp: Tcp | None = None

    def __repr__(self) -> str:
        return f"<contract of {self.session_id}>"


class ContractError(Exception):
    """The contract cannot be kept: `faults` says of each field that is wrong what is, by its path."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def check_untrusted(raw: object) -> tuple[Contract, list[str]]:
    """The contract, and the paths of the fields that are unknown here. Raises ContractError, which quotes no secret."""
    checking = _Checking()
    contract = checking.struct(raw, Contract, "")
    unknown = [path for path in checking.unknown if path not in _UNSUPPORTED]
    checking.faults += [f"{path}: is not supported here" for path in checking.unknown if path in _UNSUPPORTED]
    if contract is None or checking.faults:
        raise ContractError(checking.faults)
    if faults := _across(contract):
        raise ContractError(faults)
    return contract, unknown


class _Checking:
    """Of one object with all objects in it."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.unknown: list[str] = []

    def struct(self, raw: object, kind: type[Kind], path: str) -> Kind | None:
        """`raw` as `kind`; None if there is a fault in it."""
        if not isinstance(raw, Mapping):
            self.faults.append(f"{path or KEY}: should be an object")
            return None
        before = len(self.faults)
        fields = msgspec.structs.fields(kind)
        values = {field.name: self._field(raw, field, path) for field in fields if field.required or field.name in raw}
        known = {field.name for field in fields}
        self.unknown += [_join(path, str(name)[:100]) for name in raw if name not in known and raw[name] is not None]
        return kind(**values) if len(self.faults) == before else None

    def _field(self, raw: Mapping[Any, Any], field: msgspec.structs.FieldInfo, path: str) -> object:
        where = _join(path, field.name)
        if field.name not in raw:
            self.faults.append(f"{where}: is missing")
            return None
        value, nested = raw[field.name], _struct_of(field.type)
        if nested is not None and isinstance(value, Mapping):
            return self.struct(value, nested, where)
        try:
            return msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            self.faults.append(f"{where}: {error}")
            return None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((choice for choice in choices if isinstance(choice, type) and issubclass(choice, msgspec.Struct)), None)


def _across(contract: Contract) -> list[str]:
    """Faults that are not of one field by itself."""
    faults = []
    limits = contract.policy
    if limits.max_concurrent_subagents < limits.max_depth:
        faults.append("policy.max_concurrent_subagents: must be at least policy.max_depth")
    for name, value in contract.provider.headers.items():
        if name.lower() in _OUR_HEADERS:
            faults.append(f"provider.headers.{name}: is set by the harness")
        elif not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not _can_be_carried(value):
            faults.append(f"provider.headers.{name[:100]}: HTTP cannot carry it")
    if not _can_be_carried(contract.provider.api_key):
        faults.append("provider.api_key: HTTP cannot carry it")
    if "search" in contract.skills and not contract.search_api_key:
        faults.append("search_api_key: is missing, and the skill search needs it")
    for name, value in contract.kernel_env.items():
        if not name or "=" in name or "\0" in name + value:
            faults.append(f"kernel_env.{name[:100]!r}: is nothing that an environment can have")
    if sum(map(len, contract.execution_command or ())) > COMMAND_LIMIT:
        faults.append(f"execution_command: has more than {COMMAND_LIMIT} characters")
    if contract.execution_command is not None and contract.execution_tcp is not None:
        faults.append("execution_tcp: there is an execution_command, too; which is it?")
    return faults


def _can_be_carried(value: str) -> bool:
    """By a header of HTTP."""
    return value.isascii() and value.isprintable() and value == value.strip()
