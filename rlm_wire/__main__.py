"""`rlm-wire`: a look at a server, and the protocol's schema, from the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rlm_wire import __version__

_EXAMPLES = """\
examples:
  rlm-wire ping tcp://127.0.0.1:4711 --token-file token
      who answers there, what was agreed, and how long a round trip takes
  rlm-wire ping 'stdio:ssh build.example rlm-worker serve --stdio' --count 5
  rlm-wire ping 'relay:docker exec -i box rlm-worker attach --unix /run/rlm.sock'
  rlm-wire ping unix:/run/user/1000/worker.sock --json
      the same as one JSON object, for programs; times in seconds
  rlm-wire schema > schema.json
      the JSON Schema of every frame and method

The token is read from RLM_TOKEN unless a file or a descriptor is named.
Exit codes: 0 answered, 1 the server cannot be reached or refuses, 2 a mistake in what was asked for, 130 interrupted.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rlm-wire: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; a user's mistake is one line on stderr."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "schema":
            return _schema()
        return _ping(options)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rlm-wire", description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"rlm-wire {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    ping = commands.add_parser(
        "ping",
        help="say who answers at a URL, and how fast",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ping.add_argument(
        "url", metavar="URL", help="tcp://HOST:PORT, tls://HOST:PORT, unix:PATH, stdio:COMMAND or relay:COMMAND"
    )
    token = ping.add_mutually_exclusive_group()
    token.add_argument("--token-file", metavar="PATH", help="a file with the shared token, instead of RLM_TOKEN")
    token.add_argument("--token-fd", metavar="N", type=int, help="an open descriptor to read the shared token from")
    ping.add_argument("--count", metavar="N", type=_count, default=1, help="round trips to measure (default: 1)")
    ping.add_argument("--json", action="store_true", help="print one JSON object")
    commands.add_parser(
        "schema",
        help="print the JSON Schema of protocol and methods",
        epilog="Exit codes: 0 printed, 1 nobody reads it, 2 a mistake in what was asked for.",
    )
    return parser


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1_000_000:
        raise ValueError
    return number


_count.__name__ = "number from 1 to 1000000"


def _schema() -> int:
    from rlm_wire.schema_export import export

    _say(json.dumps(export(), indent=2))
    return 0


def _ping(options: argparse.Namespace) -> int:
    from rlm_wire.errors import AuthenticationError, TransportError, WireError
    from rlm_wire.tokens import exposure, take_token

    try:
        token = take_token(options.token_file, options.token_fd)
        _check(options.url)
    except (ValueError, TransportError) as error:
        return _complain(error, 2)
    if options.token_file and (warning := exposure(options.token_file)):
        sys.stderr.write(f"rlm-wire: {warning}\n")
    import trio  # here: it takes its time, and a mistake on the command line should be told at once

    try:
        found = trio.run(_look, options.url, token, options.count)
    except AuthenticationError as error:  # the server may not say more; what it had to compare is known here
        return _complain(f"{error} (is our token the one it was started with?)" if token else error, 1)
    except WireError as error:
        return _complain(error, 1)
    _say(json.dumps(found) if options.json else _describe(found))
    return 0


def _check(url: str) -> None:
    """Raises ValueError or TransportError if `url` cannot be asked: a mistake here, no failure to reach anybody."""
    from rlm_wire.transports import transport_for

    scheme = url.partition(":")[0].lower()
    if scheme == "memory":
        raise ValueError("memory: links the tasks of one process; give the URL of another one")
    _, address = transport_for(url)
    if scheme in {"tcp", "tls"}:
        from rlm_wire.transports.tcp import split_address

        split_address(address, scheme=scheme)


async def _look(url: str, token: bytes | None, count: int) -> dict[str, Any]:
    from rlm_wire.endpoints import connect

    async with connect(url, token=token) as peer:
        info = peer.info
        return {
            "url": url,
            "software": info.software,
            "version": info.version,
            "codec": info.codec,
            "features": info.features,
            "limits": {name: getattr(info.limits, name) for name in info.limits.__struct_fields__},
            "round_trips": [await peer.ping() for _ in range(count)],
        }


def _describe(found: dict[str, Any]) -> str:
    trips = [f"{seconds * 1000:.3f} ms" for seconds in sorted(found["round_trips"])]
    limits = ", ".join(f"{name} {value}" for name, value in found["limits"].items())
    return (
        f"software    {found['software']}\n"
        f"protocol    version {found['version']}, codec {found['codec']}\n"
        f"features    {', '.join(found['features']) or 'none'}\n"
        f"limits      {limits}\n"
        f"round trip  {trips[0]}"
        + (f" at best, {trips[len(trips) // 2]} median, {trips[-1]} at worst" if len(trips) > 1 else "")
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _complain(error: Exception | str, status: int) -> int:
    sys.stderr.write(f"rlm-wire: {' '.join(str(error).split())}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
