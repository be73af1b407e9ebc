"""`rlm-harness acp`, which is also `rlm --acp`: the harness, driven over the Agent Client Protocol."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from rlm_harness.commands.options import CONCURRENCY, DEFAULT_BASE_URL, MAX_DEPTH, add_budgets
from rlm_harness.commands.output import complain

if TYPE_CHECKING:
    from rlm_harness.acp.contract import Contract

_EXAMPLES = """\
examples:
  rlm --acp
      for a rollout framework, which says in session/new what it wants: model, endpoint, limits, workspace
  OPENAI_API_KEY=... rlm-harness acp --model gpt-5
      for an editor, which does not: name this as the command of an agent in its settings
  rlm-harness acp --model qwen3 --base-url http://127.0.0.1:8000/v1 --max-tokens 2000000 --max-depth 0
      with another endpoint, which needs no key, and within limits

Messages come and go on standard input and output, one a line, as the Agent Client Protocol says. It ends when its input
ends, and on SIGTERM. Every session leaves its ledger in ~/.rlm/sessions, or in sessions below RLM_HOME, under the id
that the client knows: rlm-harness show ID.
Exit codes: 0 the input has ended, or it was told to end; 2 a mistake in what was asked for.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "acp",
        help="be driven over the Agent Client Protocol",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="NAME", help="the model of sessions whose client names none")
    parser.add_argument("--base-url", metavar="URL", help=f"its endpoint; OPENAI_BASE_URL or {DEFAULT_BASE_URL}")
    parser.add_argument("--api-key-file", metavar="PATH", help="a file with the key, instead of OPENAI_API_KEY")
    limits = parser.add_argument_group("limits", "of each session whose client names no model")
    add_budgets(limits, tokens="no limit")
    parser.set_defaults(run=_run, max_depth=MAX_DEPTH, concurrency=CONCURRENCY)


def rlm(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `rlm`: as `rlm-harness`, whose `acp` may be written `--acp`."""
    from rlm_harness.cli import main

    given = list(sys.argv[1:] if arguments is None else arguments)
    main(["acp", *given[1:]] if given[:1] == ["--acp"] else given, "rlm")


def _run(options: argparse.Namespace) -> int:
    import trio

    from rlm_harness.secrets import UserError, hide_process
    from rlm_wire.errors import TransportError

    try:
        defaults = _defaults(options)
    except UserError as error:
        return complain(str(error))
    hide_process()
    try:
        from rlm_harness.acp.server import Server
    except ImportError as error:
        return complain(f"this needs the acp extra, pip install 'rlm-wire[acp]': {error}")
    try:
        trio.run(Server(defaults).serve)
    except TransportError as error:
        return complain(str(error))
    return 0


def _defaults(options: argparse.Namespace) -> Contract | None:
    """The contract of sessions whose client names none. Raises UserError."""
    from rlm_harness.secrets import UserError, read_secret_file, take_secret

    key = take_secret("OPENAI_API_KEY")  # leaves the environment in any case
    if options.api_key_file:
        key = read_secret_file(options.api_key_file)
    base_url = options.base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
    if options.model is None:
        return None
    if key is None and base_url == DEFAULT_BASE_URL:
        raise UserError("no API key: set OPENAI_API_KEY, or name a file with --api-key-file")
    if options.concurrency < options.max_depth:
        raise UserError("--concurrency must be at least --max-depth")
    from rlm_harness.acp.contract import Contract, Limits, Provider
    from rlm_harness.model.chat import completions_url

    completions_url(base_url)  # now, and not only when the client opens a session
    return Contract(
        session_id="default",
        model=options.model,
        provider=Provider(base_url=base_url, api_key=key.reveal() if key is not None else "none"),
        policy=Limits(
            allow_git=True,
            max_total_turns=options.max_turns,
            max_total_tokens=options.max_tokens,
            max_depth=options.max_depth,
            max_subagent_calls=options.max_agents,
            max_concurrent_subagents=options.concurrency,
        ),
        system_prompt_path=None,
        append_to_system_prompt=None,
        skills=["bash", "edit", "fetch"],
        builtin_tools=["ipython", "bash", "edit", "fetch"],
        kernel_env={},
        search_api_key=None,
    )
