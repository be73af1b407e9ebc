"""`rlm-harness sessions`: which sessions there are."""

from __future__ import annotations

import argparse
from typing import Any

from rlm_harness.commands.output import print_text

_EXAMPLES = """\
examples:
  rlm-harness sessions
      the newest first: id, start, status, model, turns, tokens, size, and what was asked
  rlm-harness sessions --json | jq -r 'select(.status == "interrupted") | .session'
      those whose harness ended without an end: rlm-harness resume goes on with them

Sessions are looked for in ~/.rlm/sessions, or in sessions below RLM_HOME. The status of a session is how its last
prompt ended, or `running`, `interrupted`, or `damaged` where its ledger cannot be read.
Exit codes: 0 listed, 2 a mistake in what was asked for.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "sessions", help="list the sessions", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one session a line as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import msgspec

    from rlm_harness.ledger.files import sessions_directory
    from rlm_harness.ledger.sessions import list_sessions
    from rlm_harness.transcript import render_list

    parent = sessions_directory()
    sessions = list_sessions(parent)
    if options.json:
        print_text("".join(msgspec.json.encode(session).decode() + "\n" for session in sessions))
    elif sessions:
        print_text(render_list(sessions))
    else:
        print_text(f"no sessions in {parent}\n")
    return 0
