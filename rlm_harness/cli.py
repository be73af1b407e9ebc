"""The command line: arguments in, exit code out.

A command imports what it needs only when it runs, so that --help is quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from rlm_harness.commands import sessions, show
from rlm_harness.commands.output import complain
from rlm_wire import __version__

if TYPE_CHECKING:
    from rlm_harness.display import JsonDisplay, TerminalDisplay
    from rlm_harness.secrets import Secret

DEFAULT_BASE_URL = "https://api.openai.com/v1"

EXAMPLES = """\
examples:
  rlm-harness demo
      watch a scripted model mend a small project; needs no key and no network
  OPENAI_API_KEY=... rlm-harness run --model gpt-5 "make the tests pass"
      work in the current directory, with a worker of its own
  rlm-harness run --model qwen3 --base-url http://127.0.0.1:8000/v1 --cwd project "add a --verbose flag"
      any OpenAI-compatible endpoint
  rlm-harness run --model gpt-5 --workspace tls://workspace.example:4711 --token-file token --json "..."
      in a workspace elsewhere (there: rlm-worker serve); events as JSON lines
  rlm-harness sessions; rlm-harness show 3f9c
      what was done before: all sessions, and all of one

Ctrl-C cancels the turn: the running tool is stopped and its output so far is kept. A second one leaves at once.
The token is read from RLM_TOKEN unless a file or a descriptor is named. Every session, also one that fails, leaves its
ledger in ~/.rlm/sessions, or in sessions below RLM_HOME.
Exit codes: 0 answered, 1 not answered, 2 a mistake in what was asked for, 130 interrupted, 143 terminated.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rlm-harness: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `rlm-harness`; exits with the code that the help text explains."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        sys.exit(options.run(options))
    except KeyboardInterrupt:  # before or after the signals are handled in order
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has left
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rlm-harness",
        description="Runs an agent: the model's turns here, its tools in a workspace.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rlm-harness {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run", help="let a model work on a task", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    run.add_argument("task", help="what the model is to do")
    run.add_argument("--model", required=True, metavar="NAME", help="the model's name at the endpoint")
    run.add_argument("--base-url", metavar="URL", help=f"OPENAI_BASE_URL or {DEFAULT_BASE_URL} if not given")
    run.add_argument("--api-key-file", metavar="PATH", help="a file with the key, instead of OPENAI_API_KEY")
    run.add_argument("--workspace", metavar="URL", help="a running worker; without it one is started here")
    token = run.add_mutually_exclusive_group()
    token.add_argument("--token-file", metavar="PATH", help="a file with the worker's token, instead of RLM_TOKEN")
    token.add_argument("--token-fd", metavar="N", type=int, help="an open descriptor to read the worker's token from")
    run.add_argument("--cwd", metavar="DIR", help="the directory to work in, in the workspace")
    run.add_argument("--max-turns", metavar="N", type=_positive, help="give up after N model calls, of all agents")
    run.add_argument(
        "--max-tokens",
        metavar="N",
        type=_positive,
        default=1_000_000,
        help="give up after N tokens, of all agents (default 1000000)",
    )
    run.add_argument(
        "--max-depth",
        metavar="N",
        type=_count,
        default=1,
        help="how deep agents may start agents: 0 not at all, 1 (the default) only the first",
    )
    run.add_argument("--max-agents", metavar="N", type=_count, help="how many agents may be started in all")
    run.add_argument(
        "--summarize-at-tokens",
        metavar="N",
        type=_positive,
        help="have the model summarise the conversation when it is this long; without it, when its window fills up",
    )
    demo = commands.add_parser(
        "demo",
        help="watch a scripted model mend a small project",
        epilog="Exit codes: 0 mended, 1 not mended, 2 it cannot run here, 130 interrupted.",
    )
    run.set_defaults(run=_run)
    demo.set_defaults(run=_demo)
    sessions.add_parser(commands)
    show.add_parser(commands)
    for command in (run, demo):
        command.add_argument("--json", action="store_true", help="print one event a line as JSON")
    return parser


def _positive(text: str) -> int:
    number = _count(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    from rlm_harness.secrets import UserError, hide_process, read_secret_file, take_secret
    from rlm_wire.tokens import exposure, take_token

    try:
        # Both leave the environment even if a file is used instead: a local worker would inherit them.
        key, token = take_secret("OPENAI_API_KEY"), take_token(options.token_file, options.token_fd)
        if options.api_key_file:
            key = read_secret_file(options.api_key_file)
        base_url = options.base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
        if key is None and base_url == DEFAULT_BASE_URL:
            raise UserError("no API key: set OPENAI_API_KEY, or name a file with --api-key-file")
        if not options.task.strip():
            raise UserError("the task is empty")
    except (UserError, ValueError) as error:
        return complain(str(error))
    for path in (options.api_key_file, options.token_file):
        if path and (warning := exposure(path)):
            complain(warning)
    hide_process()
    return _converse(options, base_url, key, token)


def _converse(options: argparse.Namespace, base_url: str, key: Secret | None, token: bytes | None) -> int:
    import trio

    from rlm_harness.compaction import CompactionPolicy
    from rlm_harness.events import Event, SessionEnded, SessionStarted
    from rlm_harness.model.chat import open_chat_model
    from rlm_harness.secrets import UserError
    from rlm_harness.session import Interrupts, Task, exit_code, run_task
    from rlm_harness.supervisor.policy import Policy
    from rlm_wire.broker.groups import one_error
    from rlm_wire.errors import WireError

    display = _display(options)
    interrupts = Interrupts(display.show)
    ledger = ""

    async def show(event: Event) -> None:
        nonlocal ledger
        if isinstance(event, SessionStarted):
            ledger = event.ledger
        await display.show(event)

    async def work() -> SessionEnded:
        async with open_chat_model(options.model, base_url, key) as model:
            task = Task(
                # Bytes of the command line that are no UTF-8 could be neither recorded nor sent.
                text=os.fsencode(options.task).decode("utf-8", "replace"),
                url=options.workspace,
                cwd=options.cwd,
                policy=Policy(
                    max_depth=options.max_depth,
                    max_subagents=options.max_agents,
                    max_turns=options.max_turns,
                    max_tokens=options.max_tokens,
                ),
                compaction=CompactionPolicy(options.summarize_at_tokens, model.context_window),
            )
            with one_error():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(display.keep_fresh)
                    ended = await run_task(task, model, show, interrupts, token=token)
                    nursery.cancel_scope.cancel()
            return ended

    try:
        ended = trio.run(interrupts.run, work)
    except (UserError, WireError) as error:
        return complain(str(error))
    if ended is None:
        complain("left at once" + (f"; what was recorded is in {ledger}" if ledger else ""))
    elif ended.message:
        complain(ended.message)
    return exit_code(ended, interrupts)


def _demo(options: argparse.Namespace) -> int:
    import trio

    from rlm_harness.demo.show import run_demo
    from rlm_harness.secrets import UserError
    from rlm_wire.errors import WireError

    try:
        return trio.run(run_demo, _display(options).show)
    except (UserError, WireError) as error:
        return complain(str(error))


def _display(options: argparse.Namespace) -> JsonDisplay | TerminalDisplay:
    from rlm_harness.display import JsonDisplay, TerminalDisplay, write_to

    write = write_to(sys.stdout.fileno())
    if options.json:
        return JsonDisplay(write)
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    size = partial(os.get_terminal_size, sys.stdout.fileno()) if terminal else None
    return TerminalDisplay(write, colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"), size=size)
