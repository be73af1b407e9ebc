"""Which MCP servers there are: the file that other programs use as well, `{"mcpServers": {NAME: {...}}}`.

A server has either `command`, `args`, `env`, `cwd`, or `url`, `headers`; what else stands there is for others.
`${NAME}` and `${NAME:-default}` are replaced by variables of the environment. Those that stand in `env` and `headers`
are taken out of it, as they are secrets.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, TypeAlias

import httpx
import msgspec

from rlm_harness.secrets import Secret, UserError
from rlm_wire.tokens import take_variable

FILE_LIMIT: Final = 1 << 20

SERVERS_LIMIT: Final = 64
"""Servers of one session: each is a process of its own, or a connection that is kept."""

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_NO_SECRETS: Final = {"HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "USER"}
"""Variables that stay in the environment: we need them ourselves."""

_OF_THE_BODY: Final = {"content-length", "transfer-encoding"}
"""Headers that say where a request ends: another than ours would break each of them."""


class StdioServer(msgspec.Struct, frozen=True):
    """A child process of ours. `env` is laid over the few variables that the SDK passes on (PATH, HOME, ...)."""

    name: str
    command: str
    arguments: list[str]
    env: dict[str, Secret]
    cwd: str | None = None

    @property
    def secrets(self) -> list[Secret]:
        return list(self.env.values())


class HttpServer(msgspec.Struct, frozen=True):
    """Streamable HTTP."""

    name: str
    url: str
    headers: dict[str, Secret]

    @property
    def secrets(self) -> list[Secret]:
        return list(self.headers.values())


McpServer: TypeAlias = StdioServer | HttpServer


def fault(server: McpServer) -> str | None:
    """Why `server` need not even be tried, as `FIELD: REASON` without any value; None if nothing is to be said."""
    if isinstance(server, StdioServer):
        if not server.command.strip() or "\0" in server.command:
            return "command: cannot be run"
        if any("\0" in argument for argument in server.arguments):
            return "args: no argument can have a NUL character"
        if any(not name or "=" in name or "\0" in name + value.reveal() for name, value in server.env.items()):
            return "env: has a variable that no environment can hold"
        return "cwd: no path can have a NUL character" if "\0" in (server.cwd or "") else None
    if not _is_url(server.url):
        return "url: is not http:// or https:// with a host"
    if not all(_is_header(name, value.reveal()) for name, value in server.headers.items()):
        return "headers: has a header that HTTP cannot carry"
    return None


class _Entry(msgspec.Struct):
    type: str | None = None
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}


class _File(msgspec.Struct, rename="camel"):
    mcp_servers: dict[str, msgspec.Raw]


def read_mcp_file(path: str) -> list[McpServer]:
    """The servers in the file `path`. Raises UserError, which names the server and quotes no value."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_LIMIT + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > FILE_LIMIT:
        raise UserError(f"{path} is larger than {FILE_LIMIT >> 20} MiB: that is no list of MCP servers")
    variables = _Variables()
    try:
        entries = msgspec.json.decode(data, type=_File).mcp_servers
        if len(entries) > SERVERS_LIMIT:
            raise UserError(f"{path} has {len(entries)} MCP servers; a session can have {SERVERS_LIMIT}")
        return [_server(path, name, entry, variables) for name, entry in entries.items()]
    except msgspec.ValidationError as error:
        form = '{"mcpServers": {"NAME": {"command": "...", "args": []} or {"url": "..."}}}'
        raise UserError(f"{path} does not fit: {error}; it should be {form}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None


class _Variables:
    """The environment, as the file asks for it."""

    def __init__(self) -> None:
        self._taken: dict[str, str] = {}

    def fill(self, text: str, where: str, *, secret: bool = False) -> str:
        def value(match: re.Match[str]) -> str:
            name, default = match.groups()
            found = self._find(name, secret and name not in _NO_SECRETS)
            if found is None and default is None:
                raise UserError(f"{where} needs the environment variable {name}, which is not set")
            return default if found is None else found

        return _VARIABLE.sub(value, text)

    def _find(self, name: str, take: bool) -> str | None:
        if take and (taken := take_variable(name)) is not None:
            self._taken[name] = os.fsdecode(taken)
        return self._taken.get(name, os.environ.get(name))


def _server(path: str, name: str, raw: msgspec.Raw, variables: _Variables) -> McpServer:
    where = f"the MCP server {name!r} in {path}"
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except msgspec.ValidationError as error:
        raise UserError(f"{where} does not fit: {error}") from None
    if entry.type == "sse":
        raise UserError(f"{where} is of type 'sse', which MCP has given up: name its streamable HTTP address")
    if (entry.command is None) == (entry.url is None):
        raise UserError(f"{where} must have either a command or a url")
    if entry.command is not None:
        env = {key: Secret(variables.fill(value, where, secret=True)) for key, value in entry.env.items()}
        command, *arguments = (variables.fill(text, where) for text in [entry.command, *entry.args])
        cwd = entry.cwd and variables.fill(entry.cwd, where)
        server: McpServer = StdioServer(name, command, arguments, env, cwd)
    else:
        headers = {key: Secret(variables.fill(value, where, secret=True)) for key, value in entry.headers.items()}
        server = HttpServer(name, variables.fill(entry.url or "", where), headers)
    if (wrong := fault(server)) is not None:
        raise UserError(f"{where} does not fit: {wrong}")
    return server


def _is_url(text: str) -> bool:
    try:
        url = httpx.URL(text)
        url.host.encode("idna")  # as the look-up will, and there nobody expects that it cannot be done
    except (httpx.InvalidURL, UnicodeError):
        return False
    return url.scheme in {"http", "https"} and bool(url.host) and (url.port or 0) < 1 << 16


def _is_header(name: str, value: str) -> bool:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or name.lower() in _OF_THE_BODY:
        return False
    return value.isascii() and value.isprintable() and value == value.strip()
