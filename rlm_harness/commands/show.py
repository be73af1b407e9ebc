"""`rlm-harness show`: what happened in a session."""

from __future__ import annotations

import argparse
from typing import Any

from rlm_harness.commands.output import complain, print_text

_EXAMPLES = """\
examples:
  rlm-harness show 3f9c
      the session whose id begins so: its agents, with turns, tokens, time and size, and what each said and did
  rlm-harness show 3f9c --full | less
      with nothing shortened
  rlm-harness show 3f9c --json | jq '.agents[].records[] | select(.type == "tool_result")'
      every record of every agent

A session that is running can be shown too, as far as it has come. Of a damaged one all is shown that can be read; a
line that begins with "!" says which lines of which file are left out.
Exit codes: 0 shown, 1 not all of it could be read (what could is shown), 2 there is no such session, or more than one.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "show", help="show a session", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("session", metavar="SESSION", help="its id, or the beginning of it")
    parser.add_argument("--full", action="store_true", help="shorten nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object with all records")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import msgspec

    from rlm_harness.ledger.files import sessions_directory
    from rlm_harness.ledger.sessions import as_json, find_session, load_agents
    from rlm_harness.secrets import UserError
    from rlm_harness.transcript import render_session

    try:
        root = load_agents(find_session(sessions_directory(), options.session))
    except UserError as error:
        return complain(str(error))
    if options.json:
        print_text(msgspec.json.encode(as_json(root)).decode() + "\n")
    else:
        for piece in render_session(root, full=options.full):
            print_text(piece)
    return 1 if any(agent.problem for agent in root.descendants()) else 0
