"""The skills of a session, opened as they were chosen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from rlm_harness.mcp_servers.configuration import McpServer
from rlm_harness.secrets import Secret, UserError
from rlm_harness.skills.names import LOCAL
from rlm_harness.skills.search import SERPER, SKILL, open_serper, search_with
from rlm_harness.skills.table import SkillTable

BUILT_IN: Final = (*LOCAL, SKILL.name)


def chosen(names: Sequence[str] | None, key: Secret | None) -> list[str]:
    """Built-in skills by name; without `names` all, but the search only with a `key`. Raises UserError."""
    if names is None:
        return [name for name in BUILT_IN if name != SKILL.name or key is not None]
    for name in names:
        if name not in BUILT_IN:
            raise UserError(f"there is no skill {name!r}; the skills are {', '.join(BUILT_IN)}")
    if SKILL.name in names and key is None:
        raise UserError("the skill search needs a key: set SERPER_API_KEY, or name a file with --search-key-file")
    return list(names)


@asynccontextmanager
async def open_skills(
    names: Sequence[str], servers: Sequence[McpServer] = (), *, key: Secret | None = None, search_url: str = SERPER
) -> AsyncIterator[SkillTable]:
    """The built-in skills `names`, as `chosen`, and the tools of MCP `servers`.

    Raises UserError as `open_mcp_servers`. Leaving ends all that answers them.
    """
    table = SkillTable([name for name in LOCAL if name in names])
    async with AsyncExitStack() as stack:
        if SKILL.name in names and key is not None:
            provider = await stack.enter_async_context(open_serper(key, search_url))
            table.add(SKILL, search_with(provider), "the skill search")
        if servers:
            from rlm_harness.mcp_servers.servers import open_mcp_servers  # the SDK is not always installed

            await stack.enter_async_context(open_mcp_servers(servers, table))
        yield table
