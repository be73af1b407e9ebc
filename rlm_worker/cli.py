"""`rlm-worker`: the command line. Options, where the token comes from, signals; what is served is in `service`.

Imports are local where a mistake or `--help` would wait for them.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import rlm_wire
from rlm_wire.frames.limits import LEASE
from rlm_wire.tokens import exposure, take_token
from rlm_worker import environment
from rlm_worker.processes.tiers import TIERS

if TYPE_CHECKING:
    import ssl

_EXAMPLES = """\
examples:
  python -c 'import secrets; print(secrets.token_urlsafe(32))' > token; chmod 600 token
  rlm-worker serve --tcp 127.0.0.1:0 --token-file token
      prints one line, `listening on tcp://127.0.0.1:PORT`
  rlm-worker serve --tls 0.0.0.0:4711 --token-file token --cwd /srv/project
      with a certificate made on the spot: the token proves both sides, so the client needs no authority
  rlm-worker serve --unix /run/rlm.sock
      for processes of the same user; needs no token
  rlm-worker attach --unix /run/rlm.sock
      leads from stdin and stdout to that worker: a harness outside uses
      `relay:docker exec -i box rlm-worker attach --unix /run/rlm.sock`, and runs it again when it breaks
  rlm-worker serve --stdio
      for a program that starts it and speaks the protocol through its stdin and stdout
  rlm-worker doctor
      says whether this machine has all that a worker needs

Exit codes: 0 an orderly end (a signal, or the client on stdio left), 1 the client on stdio was refused, 2 a mistake in
what was asked for.
"""

_STRANGERS = (
    "a TCP or TLS worker needs a token, or whoever reaches the port could run commands: make one with"
    " `python -c 'import secrets; print(secrets.token_urlsafe(32))' > token; chmod 600 token` and pass"
    " --token-file token"
)

_NO_TERMINAL = (
    "{} speaks a protocol, for a program that starts it, and this is a terminal; have that program start it without -t"
    " (ssh, docker exec -i, kubectl exec -i), or have a worker listen: --tcp, --tls or --unix"
)

_ENDING = [signal.SIGTERM, signal.SIGINT]


LONGEST_LEASE = 7 * 24 * 3600
"""Seconds: whatever is left running by then has been forgotten."""


class _UserError(Exception):
    """Something the user asked for cannot be; one line that says what to do instead."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rlm-worker: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code, which `--help` explains."""
    _occupy_standard_descriptors()
    try:
        options = _parser().parse_args(arguments)
        _log_to_stderr(options.verbose)
        code: int = options.run(options)
        return code
    except (_UserError, rlm_wire.WireError) as error:
        _say(str(error))
        return 2


def _say(message: str) -> None:
    os.write(2, f"rlm-worker: {' '.join(message.split())}\n".encode("utf-8", "replace"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rlm-worker",
        description="Runs the tools of AI agents where it is started.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rlm-worker {rlm_wire.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="answer tool calls",
        description="Answer tool calls: bash commands, Python cells, edits, fetches.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = serve.add_mutually_exclusive_group(required=True)
    where.add_argument("--stdio", action="store_true", help="speak through stdin and stdout, and end with them")
    where.add_argument("--tcp", metavar="HOST:PORT", help="listen; port 0 takes a free one")
    where.add_argument("--tls", metavar="HOST:PORT", help="listen, encrypted")
    where.add_argument("--unix", metavar="PATH", help="listen at a Unix socket; only other users need a token")
    token = serve.add_mutually_exclusive_group()
    token.add_argument("--token-file", metavar="PATH", help="a file with the shared token, instead of RLM_TOKEN")
    token.add_argument("--token-fd", metavar="N", type=int, help="an open descriptor to read the shared token from")
    serve.add_argument("--certificate", metavar="PATH", help="TLS: our certificate (PEM), instead of one made here")
    serve.add_argument("--key", metavar="PATH", help="TLS: its private key (PEM), if that is in another file")
    serve.add_argument("--client-ca", metavar="PATH", help="TLS: only clients with a certificate of this authority")
    serve.add_argument(
        "--lease",
        metavar="SECONDS",
        type=_lease,
        default=LEASE,
        help=f"keep a session without a connection, and what a lost harness has left, so long (default: {LEASE})",
    )
    serve.add_argument(
        "--silence",
        metavar="SECONDS",
        type=_seconds,
        help="take a connection for broken on which nothing is heard for so long (default: 30)",
    )
    serve.add_argument("--verbose", action="store_true", help="say more on stderr")
    serve.set_defaults(run=_serve)
    attach = commands.add_parser(
        "attach",
        help="lead from stdin and stdout to a worker at a Unix socket",
        description="Carry bytes between stdin and stdout and the Unix socket of a worker, until either has closed.",
        epilog="A harness outside uses `relay:ssh HOST rlm-worker attach --unix PATH` and runs it again when it breaks."
        " Exit codes: 0 either end has closed, 2 a mistake in what was asked for, or nobody listens there.",
    )
    attach.add_argument("--unix", metavar="PATH", required=True, help="the socket of `rlm-worker serve --unix PATH`")
    attach.set_defaults(run=_attach, verbose=False)
    doctor = commands.add_parser(
        "doctor",
        help="look over this machine",
        description="Look over this machine: how far processes can be contained here, and whatever else workers need.",
        epilog="Exit codes: 0 a worker can run here, 1 what it needs is missing, 2 a mistake in what was asked for.",
    )
    doctor.add_argument("--json", action="store_true", help="for programs")
    doctor.set_defaults(run=_doctor, verbose=False)
    for command in (serve, doctor):
        command.add_argument(
            "--cwd", metavar="DIR", help="the directory that agents work in (default: the current one)"
        )
        command.add_argument(
            "--containment",
            metavar="TIER",
            choices=TIERS,
            default=os.environ.get("RLM_CONTAINMENT") or None,
            help=f"how processes are contained: {', '.join(TIERS)} (default: RLM_CONTAINMENT, or the best there is)",
        )
    return parser


def _seconds(text: str) -> int:
    seconds = int(text) if text.isascii() and text.isdigit() else 0
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number of seconds")
    return seconds


def _lease(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > LONGEST_LEASE:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds, at most {LONGEST_LEASE}")
    return int(text)


def _attach(options: argparse.Namespace) -> int:
    _refuse_terminal("attach")
    import trio

    from rlm_worker.attach import attach

    trio.run(attach, str(Path(options.unix).absolute()))
    return 0


def _refuse_terminal(what: str) -> None:
    if os.isatty(0) or os.isatty(1):
        raise _UserError(_NO_TERMINAL.format(what))


def _doctor(options: argparse.Namespace) -> int:
    from rlm_worker.doctor import examine, report

    tier = _tier(options)
    findings = examine(tier, options.cwd or ".", environment.workspace_environment(os.environ))
    text, code = report(findings, as_json=options.json)
    os.write(1, f"{text}\n".encode())
    return code


def _tier(options: argparse.Namespace) -> str | None:
    tier: str | None = options.containment
    if tier is not None and tier not in TIERS:  # argparse does not check defaults
        raise _UserError(f"RLM_CONTAINMENT={tier} is not one of {', '.join(TIERS)}")
    return tier


def _serve(options: argparse.Namespace) -> int:
    inherited = environment.workspace_environment(os.environ)
    tier = _tier(options)
    try:
        token = take_token(options.token_file, options.token_fd)
    except ValueError as error:
        raise _UserError(str(error)) from None
    environment.seal()
    if options.stdio:
        _refuse_terminal("--stdio")
    try:
        cwd = str(Path(options.cwd or "").absolute())
    except OSError as error:
        raise _UserError(f"the current directory is not there: {error.strerror}; pass --cwd") from None
    if not Path(cwd).is_dir():
        raise _UserError(f"--cwd {options.cwd} is not a directory")
    if token is None and (options.tcp is not None or options.tls is not None):
        raise _UserError(_STRANGERS)
    if not options.tls and (options.certificate or options.key or options.client_ca):
        raise _UserError("--certificate, --key and --client-ca are for --tls")
    if options.token_file and (warning := exposure(options.token_file)):
        _say(warning)
    if options.tls and not options.certificate and (options.key or options.client_ca):
        raise _UserError("--key and --client-ca need --certificate: clients that have one will want to check ours")
    import trio

    tls = _tls_context(options)
    limits = rlm_wire.Limits(lease=options.lease)
    patience = rlm_wire.Patience.bearing(options.silence) if options.silence else None

    def serve(service: rlm_wire.Service) -> AbstractAsyncContextManager[rlm_wire.Server]:
        return rlm_wire.serve(_url(options), service, token, ssl_context=tls, limits=limits, patience=patience)

    refusal = trio.run(_run, serve, cwd, inherited, tier)
    if options.stdio and refusal is not None:
        _say(f"refused the client on stdio: {str(refusal).removeprefix('stdio:: ')}")
        return 1
    return 0


def _url(options: argparse.Namespace) -> str:
    if options.stdio:
        return "stdio:"
    if options.unix is not None:
        return f"unix:{Path(options.unix).absolute()}"
    return f"tls://{options.tls}" if options.tcp is None else f"tcp://{options.tcp}"


def _tls_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    if not options.tls or not options.certificate:
        return None
    from rlm_wire.transports.certificates import server_context

    return server_context(options.certificate, options.key, client_authority=options.client_ca)


async def _run(
    serve: Callable[[rlm_wire.Service], AbstractAsyncContextManager[rlm_wire.Server]],
    cwd: str,
    env: dict[str, str],
    tier: str | None,
) -> rlm_wire.WireError | None:
    """Serve until the client on stdio has left, or a signal comes; why the last client was refused, if one was."""
    import trio

    from rlm_wire.broker.groups import one_error
    from rlm_worker.kernel import open_kernel_host
    from rlm_worker.processes import open_reaper
    from rlm_worker.service import worker_service
    from rlm_worker.sessions import Worker

    with trio.open_signal_receiver(*_ENDING) as signals, one_error():
        async with (
            open_reaper(tier) as reaper,
            open_kernel_host(reaper, env=env) as kernel_host,
            serve(worker_service(Worker(reaper, kernel_host, cwd, env))) as server,
            trio.open_nursery() as nursery,
        ):
            os.write(1, "".join(f"listening on {url}\n" for url in server.urls if url != "stdio:").encode())

            async def wait_for_signal() -> None:
                async for number in signals:
                    logging.getLogger(__name__).info("ending: %s", signal.Signals(number).name)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(wait_for_signal)
            await server.wait_closed()
            nursery.cancel_scope.cancel()
    return server.refusal


def _occupy_standard_descriptors() -> None:
    """Started with 0, 1 or 2 closed, the next socket would become one of them, and prints would go into it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


class _StderrHandler(logging.Handler):
    """Logs to stderr, and loses a record rather than wait for a reader: nobody may be reading."""

    RECORD_LIMIT = select.PIPE_BUF

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record).encode("utf-8", "replace")[: self.RECORD_LIMIT - 1] + b"\n"
            _, writable, _ = select.select([], [2], [], 0)  # of a pipe: it has room for PIPE_BUF bytes
            if writable:
                os.write(2, text)
        except (OSError, ValueError):
            return


def _log_to_stderr(verbose: bool) -> None:
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for ours in ("rlm_wire", "rlm_worker") if verbose else ():  # httpx would log addresses with the keys within
        logging.getLogger(ours).setLevel(logging.INFO)
    logging.raiseExceptions = False
