"""What `run` and `resume` can be told about endpoint, workspace, limits and skills."""

from __future__ import annotations

import argparse

DEFAULT_BASE_URL = "https://api.openai.com/v1"
MAX_TOKENS = 1_000_000
MAX_DEPTH = 1
CONCURRENCY = 4


def add_places(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Where model and workspace are, and with what to get in; gives the command back."""
    command.add_argument("--base-url", metavar="URL", help=f"OPENAI_BASE_URL or {DEFAULT_BASE_URL} if not given")
    command.add_argument("--api-key-file", metavar="PATH", help="a file with the key, instead of OPENAI_API_KEY")
    command.add_argument("--workspace", metavar="URL", help="a running worker; without it one is started here")
    token = command.add_mutually_exclusive_group()
    token.add_argument("--token-file", metavar="PATH", help="a file with the worker's token, instead of RLM_TOKEN")
    token.add_argument("--token-fd", metavar="N", type=int, help="an open descriptor to read the worker's token from")
    return command


def add_skills(command: argparse.ArgumentParser) -> None:
    """Which functions cells have."""
    command.add_argument(
        "--skills",
        metavar="NAMES",
        type=lambda text: [name for name in text.split(",") if name],
        help="which functions cells have, of bash, edit, fetch, search; all if not given, search if there is a key",
    )
    command.add_argument(
        "--search-key-file", metavar="PATH", help="a file with the key for serper.dev, instead of SERPER_API_KEY"
    )
    command.add_argument(
        "--mcp", metavar="PATH", help='MCP servers whose tools cells have as functions: {"mcpServers": {...}}'
    )
    command.add_argument(
        "--no-git",
        dest="allow_git",
        action="store_false",
        default=None,
        help="refuse git commands that look beyond the history of what is checked out; no more than a courtesy",
    )


def add_budgets(command: argparse.ArgumentParser, tokens: str = str(MAX_TOKENS)) -> argparse.ArgumentParser:
    """What all agents together may use, by default so many `tokens`; gives the command back."""
    command.add_argument("--max-turns", metavar="N", type=_positive, help="give up after N model calls, of all agents")
    command.add_argument(
        "--max-tokens",
        metavar="N",
        type=_positive,
        help=f"give up after N tokens, of all agents (default {tokens})",
    )
    command.add_argument(
        "--max-depth",
        metavar="N",
        type=_count,
        help="how deep agents may start agents: 0 not at all, 1 (the default) only the first",
    )
    command.add_argument("--max-agents", metavar="N", type=_count, help="how many agents may be started in all")
    command.add_argument(
        "--concurrency",
        metavar="N",
        type=_positive,
        help=f"model calls at the same time, of all agents (default {CONCURRENCY})",
    )
    return command


def add_limits(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Budgets, and what agents can do; gives the command back."""
    add_budgets(command)
    command.add_argument(
        "--tools", metavar="NAMES", type=_tools, help="which tools there are, by comma; all if not given"
    )
    command.add_argument(
        "--parallel-tools",
        action="store_true",
        default=None,
        help="let a reply have several tool calls, which are run one after the other",
    )
    command.add_argument(
        "--pictures",
        action="store_true",
        default=None,
        help="the model can see: show it the pictures (PNG, JPEG, GIF) that its cells show",
    )
    command.add_argument(
        "--summarize-at-tokens",
        metavar="N",
        type=_positive,
        help="have the model summarise the conversation when it is this long; without it, when its window fills up",
    )
    return command


def _positive(text: str) -> int:
    number = _count(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number


def _tools(text: str) -> tuple[str, ...]:
    from rlm_harness.tools import TOOLS

    names = tuple(name for name in text.split(",") if name)
    for name in names:
        if name not in TOOLS:
            raise argparse.ArgumentTypeError(f"there is no tool {name!r}; the tools are {', '.join(TOOLS)}")
    return names


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
