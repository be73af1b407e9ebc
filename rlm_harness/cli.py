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

from rlm_harness.commands import acp, sessions, show
from rlm_harness.commands.options import (
    CONCURRENCY,
    DEFAULT_BASE_URL,
    MAX_DEPTH,
    MAX_TOKENS,
    add_limits,
    add_places,
    add_skills,
)
from rlm_harness.commands.output import complain
from rlm_wire import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from rlm_harness.display import JsonDisplay, TerminalDisplay
    from rlm_harness.opening import Task
    from rlm_harness.secrets import Secret
    from rlm_harness.skills.table import SkillTable


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
  rlm-harness sessions; rlm-harness show 3f9c; rlm-harness resume 3f9c
      what was done before: all sessions, and all of one; and how to go on with it
  rlm-harness acp --model gpt-5
      be driven over the Agent Client Protocol, by an editor or, as rlm --acp, by a rollout framework

Ctrl-C cancels the turn: the running tool is stopped and its output so far is kept. A second one leaves at once.
The token is read from RLM_TOKEN unless a file or a descriptor is named. Every session, also one that fails, leaves its
ledger in ~/.rlm/sessions, or in sessions below RLM_HOME.
Exit codes: 0 answered, 1 not answered, 2 a mistake in what was asked for, 3 the workspace was lost (not the agent's
fault: run it again), 130 interrupted, 143 terminated.
"""

RESUME_EXAMPLES = """\
examples:
  rlm-harness resume 3f9c
      go on where the harness was killed, or the machine went down
  rlm-harness resume 3f9c "now write the documentation, too"
      go on with something else; also a session that has ended
  rlm-harness resume 3f9c --model gpt-5 --workspace tls://elsewhere.example:4711 --token-file token
      with another model, and in another place

Model, endpoint, workspace, limits, tools and skills are those that the session was begun with; keys, tokens and --mcp
must be given again.
If the worker still has the workspace (rlm-worker serve --lease says how long), kernels, jobs and services are as they
were; else they are gone, and the files as they were left. The model is told what is known, and what is not.
Exit codes: 0 answered, 1 not answered, 2 a mistake in what was asked for, 3 the workspace was lost, 130 interrupted,
143 terminated.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog.partition(' ')[0]}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None, program: str = "rlm-harness") -> NoReturn:
    """Entry point of `rlm-harness`; exits with the code that the help text explains."""
    parser = _parser(program)
    options = parser.parse_args(arguments)
    try:
        sys.exit(options.run(options))
    except KeyboardInterrupt:  # before or after the signals are handled in order
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has left
        sys.exit(1)


def _parser(program: str = "rlm-harness") -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        description="Runs an agent: the model's turns here, its tools in a workspace.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{program} {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run", help="let a model work on a task", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    run.add_argument("task", help="what the model is to do")
    run.add_argument("--model", required=True, metavar="NAME", help="the model's name at the endpoint")
    run.add_argument("--cwd", metavar="DIR", help="the directory to work in, in the workspace")
    resume = commands.add_parser(
        "resume",
        help="go on with a session",
        epilog=RESUME_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    resume.add_argument("session", metavar="SESSION", help="its id, or the beginning of it")
    resume.add_argument("task", nargs="?", default="", metavar="TASK", help="what the model is to do next")
    resume.add_argument("--model", metavar="NAME", help="another model than before")
    for command in (run, resume):
        add_skills(add_limits(add_places(command)))
    # A session is gone on with within the limits that it was begun with.
    run.set_defaults(run=_run, directory=None, max_tokens=MAX_TOKENS, max_depth=MAX_DEPTH, parallel_tools=False)
    run.set_defaults(allow_git=True, concurrency=CONCURRENCY, pictures=False)
    resume.set_defaults(run=_resume, cwd=None)
    demo = commands.add_parser(
        "demo",
        help="watch a scripted model mend a small project",
        epilog="Exit codes: 0 mended, 1 not mended, 2 it cannot run here, 130 interrupted.",
    )
    demo.set_defaults(run=_demo)
    sessions.add_parser(commands)
    show.add_parser(commands)
    acp.add_parser(commands)
    for command in (run, resume, demo):
        command.add_argument("--json", action="store_true", help="print one event a line as JSON")
    return parser


def _resume(options: argparse.Namespace) -> int:
    """As `_run`, with what was not given as it was in that session."""
    from rlm_harness.ledger.files import sessions_directory
    from rlm_harness.ledger.sessions import find_session
    from rlm_harness.ledger.setup import Setup, read_setup
    from rlm_harness.secrets import UserError

    try:
        options.directory = find_session(sessions_directory(), options.session)
        setup = read_setup(options.directory) or Setup("", max_tokens=MAX_TOKENS, max_depth=MAX_DEPTH)
        if not (options.model or setup.model):
            raise UserError(f"what session {options.directory.name} was begun with is not known: name the --model")
    except UserError as error:
        return complain(str(error))
    except OSError as error:
        return complain(f"cannot read the session {options.session}: {error.strerror}")
    before = {
        "model": setup.model,
        "base_url": setup.base_url or None,
        "workspace": setup.url,
        "cwd": setup.cwd,
        "max_turns": setup.max_turns,
        "max_tokens": setup.max_tokens,
        "max_depth": setup.max_depth,
        "max_agents": setup.max_agents,
        "concurrency": setup.concurrency,
        "tools": setup.tools,
        "skills": setup.skills,
        "parallel_tools": setup.parallel_tools,
        "pictures": setup.pictures,
        "allow_git": setup.allow_git,
        "summarize_at_tokens": setup.summarize_at,
    }
    for name, value in before.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return _run(options)


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
        if options.directory is None and not options.task.strip():
            raise UserError("the task is empty")
        search_key = take_secret("SERPER_API_KEY")
        if options.search_key_file:
            search_key = read_secret_file(options.search_key_file)
        skills = _skills(options, search_key)
    except (UserError, ValueError) as error:
        return complain(str(error))
    for path in (options.api_key_file, options.token_file, options.search_key_file, options.mcp):
        if path and (warning := exposure(path)):
            complain(warning)
    hide_process()
    return _converse(options, base_url, key, token, skills)


def _skills(options: argparse.Namespace, key: Secret | None) -> AbstractAsyncContextManager[SkillTable]:
    """To be opened; what can be checked before has been. Raises UserError."""
    from rlm_harness.mcp_servers.configuration import read_mcp_file
    from rlm_harness.skills.opening import chosen, open_skills

    servers = read_mcp_file(options.mcp) if options.mcp else []
    if servers:
        import logging

        import rlm_harness.mcp_servers.servers  # noqa: F401  before the event loop runs: it takes most of a second

        logging.getLogger().addHandler(logging.NullHandler())  # the SDK would print to the terminal
    return open_skills(chosen(options.skills, key), servers, key=key)


def _converse(
    options: argparse.Namespace,
    base_url: str,
    key: Secret | None,
    token: bytes | None,
    skills: AbstractAsyncContextManager[SkillTable],
) -> int:
    import trio

    from rlm_harness.events import Event, SessionEnded, SessionStarted
    from rlm_harness.model.chat import open_chat_model
    from rlm_harness.secrets import UserError
    from rlm_harness.session import WORKSPACE_LOST, Interrupts, exit_code, run_task
    from rlm_wire.broker.groups import one_error
    from rlm_wire.errors import SessionLost, WireError

    display = _display(options)
    interrupts = Interrupts(display.show)
    ledger = ""

    async def show(event: Event) -> None:
        nonlocal ledger
        if isinstance(event, SessionStarted):
            ledger = event.ledger
        await display.show(event)

    async def work() -> SessionEnded:
        chat = open_chat_model(options.model, base_url, key, several_tools=options.parallel_tools)
        async with chat as model, skills as table:
            task = _task(options, base_url, model.context_window, table)
            with one_error():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(display.keep_fresh)
                    ended = await run_task(task, model, show, interrupts, token=token, skills=table)
                    nursery.cancel_scope.cancel()
            return ended

    try:
        ended = trio.run(interrupts.run, work)
    except SessionLost as error:  # before there was a session to end
        complain(f"the workspace was lost while it was being opened: {error}")
        return WORKSPACE_LOST
    except (UserError, WireError) as error:
        return complain(str(error))
    if ended is None:
        complain("left at once" + (f"; what was recorded is in {ledger}" if ledger else ""))
    elif ended.message:
        complain(ended.message)
    return exit_code(ended, interrupts)


def _task(
    options: argparse.Namespace, base_url: str, window: Callable[[], Awaitable[int | None]], table: SkillTable
) -> Task:
    """What the command line asks for. `window` tells how long a conversation the model takes."""
    from rlm_harness.compaction import CompactionPolicy
    from rlm_harness.decisions import ToolPolicy
    from rlm_harness.opening import Task
    from rlm_harness.supervisor.policy import Policy
    from rlm_harness.tools import TOOLS

    return Task(
        # Bytes of the command line that are no UTF-8 could be neither recorded nor sent.
        text=os.fsencode(options.task).decode("utf-8", "replace"),
        url=options.workspace,
        cwd=options.cwd,
        policy=Policy(
            max_depth=options.max_depth,
            max_subagents=options.max_agents,
            max_model_calls=options.concurrency,
            max_turns=options.max_turns,
            max_tokens=options.max_tokens,
            skills=table.skills(),
            allow_git=options.allow_git,
        ),
        tool_policy=ToolPolicy(
            TOOLS if options.tools is None else options.tools,
            several=options.parallel_tools,
            pictures=options.pictures,
        ),
        compaction=CompactionPolicy(options.summarize_at_tokens, window),
        session=options.directory,
        endpoint=base_url,
    )


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
