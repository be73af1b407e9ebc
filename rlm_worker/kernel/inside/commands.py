"""Shell escapes of cells: `!command`, `x = !command`, `%%bash` and the other script magics.

Each is one plain spawn that inherits the cell's output pipe: no pseudo-terminal, no reader threads, empty stdin. A
command has its own process group, so that interrupting the cell ends the command and what it started.
"""

# IPython is annotated only in part.
# mypy: disable-error-code="no-untyped-call, untyped-decorator, arg-type"
from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

from IPython.core.magic import cell_magic, magics_class
from IPython.core.magic_arguments import magic_arguments
from IPython.core.magics.script import ScriptMagics, script_args
from IPython.utils._process_common import arg_split
from IPython.utils.text import LSString, SList

SHELL: Final = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
GRACE: Final = 0.5  # seconds an interrupted command has between SIGTERM and SIGKILL
ARGUMENT_LIMIT: Final = 128 << 10  # Linux: one argument, with its NUL; longer scripts are read from stdin


def system(shell: Any, command: str) -> None:
    """Run `command`; its exit code (negative: the signal) becomes `_exit_code`."""
    __tracebackhide__ = True
    argv = (SHELL, "-c", command)
    process, _, _ = _run(argv) if len(command) < ARGUMENT_LIMIT // 4 else _run((SHELL,), script=command.encode())
    shell.user_ns["_exit_code"] = process.returncode
    if shell.system_raise_on_error and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def getoutput(shell: Any, command: str, *, split: bool) -> Any:
    """Run `command` and give what it wrote to stdout and stderr, as IPython's list or string."""
    __tracebackhide__ = True
    process, out, _ = _run((SHELL, "-c", command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = out.decode("utf-8", "replace")
    shell.user_ns["_exit_code"] = process.returncode
    return SList(text.splitlines()) if split else LSString(text)


def _spawn(
    argv: Sequence[str], *, script: bytes | None = None, stdout: int | None = None, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """Start `argv` in a process group of its own. `script`, if given, is its stdin, which is empty otherwise."""
    if script is None:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, process_group=0)
    with os.fdopen(os.memfd_create("script"), "wb+") as file:  # all at once: no writer is needed beside the reader
        file.write(script)
        file.seek(0)
        return subprocess.Popen(argv, stdin=file, stdout=stdout, stderr=stderr, process_group=0)


def _run(
    argv: Sequence[str], *, script: bytes | None = None, stdout: int | None = None, stderr: int | None = None
) -> tuple[subprocess.Popen[bytes], bytes, bytes]:
    """Start `argv` as `_spawn`, wait for it and give what its pipes held; an interrupt first ends its group."""
    __tracebackhide__ = True
    interrupt = _HeldInterrupt()
    try:
        process = _spawn(argv, script=script, stdout=stdout, stderr=stderr)
        try:
            interrupt.let_go()
            out, err = process.communicate()
        except BaseException:
            _end_group(process)
            raise
    finally:
        interrupt.let_go()
    return process, out or b"", err or b""


class _HeldInterrupt:
    """An interrupt that comes from now on waits until it is let go, or it would strike while nobody has the process."""

    def __init__(self) -> None:
        self._came = False
        self._holding = threading.current_thread() is threading.main_thread()
        self._handler: Any = signal.signal(signal.SIGINT, self._keep) if self._holding else None

    def let_go(self) -> None:
        if self._holding:
            self._holding = False
            signal.signal(signal.SIGINT, self._handler)
            if self._came:
                signal.raise_signal(signal.SIGINT)

    def _keep(self, _signal: int, _frame: FrameType | None) -> None:
        self._came = True


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL after `GRACE`."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        os.killpg(process.pid, signal.SIGTERM)
        select.select([pidfd], [], [], GRACE)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(pidfd)
        process.wait()


@magics_class
class Scripts(ScriptMagics):
    """`%%script`, `%%bash` and their kin with IPython's own options, on plain pipes."""

    shell: Any

    @magic_arguments()
    @script_args
    @cell_magic("script")
    def shebang(self, line: str, cell: str) -> None:
        """Run the cell's body with a program; its output is the cell's output."""
        __tracebackhide__ = True
        magic: Any = self.shebang
        options, argv = magic.parser.parse_known_args(arg_split(line))
        body = cell if cell.endswith("\n") else cell + "\n"
        script: bytes | None = body.encode("utf-8", "surrogateescape")
        if argv in (["bash"], ["sh"]) and len(body) < ARGUMENT_LIMIT // 4:  # leaves the commands an empty stdin
            argv, script = [argv[0], "-c", body], None
        stdout = subprocess.PIPE if options.out else None
        stderr = subprocess.PIPE if options.err else None
        if options.bg:
            self._leave_running(_spawn(argv, script=script, stdout=stdout, stderr=stderr), options)
            return
        process, out, err = _run(argv, script=script, stdout=stdout, stderr=stderr)
        if options.out:
            self.shell.user_ns[options.out] = out.decode("utf-8", "replace")
        if options.err:
            self.shell.user_ns[options.err] = err.decode("utf-8", "replace")
        if options.raise_error and process.returncode:
            raise subprocess.CalledProcessError(process.returncode, argv[0])

    def _leave_running(self, process: subprocess.Popen[bytes], options: Any) -> None:
        """`--bg`: the process and its pipes go to the variables that were asked for."""
        self.bg_processes.append(process)
        for name, value in ((options.proc, process), (options.out, process.stdout), (options.err, process.stderr)):
            if name:
                self.shell.user_ns[name] = value
