"""The IPython shell of a kernel: what it leaves out, and where results, displays and tracebacks go.

Nothing is read from or written to a profile, there is no history file, no colours, no pager and no prompt. Running a
cell is in `execution`, shell escapes are in `commands`.
"""

# IPython is annotated only in part.
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import builtins
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import CoroutineType, ModuleType, TracebackType
from typing import Any, NoReturn

from IPython.core import page
from IPython.core.autocall import ExitAutocall
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

from rlm_worker.kernel.inside import commands
from rlm_worker.kernel.inside.record import RESULT_LIMIT, CellRecord, class_name

FORMATTING_RECURSION = 3000  # a cell may raise the limit to what overflows the C stack; formatting its result may not
FRAMES = 20  # shown of the outer and of the inner end of a traceback
_OUR_FILES = str(Path(__file__).parent)
PREVIEW = 64 << 10  # of a str or bytes that is too long: no escape makes its repr exceed the result's limit


class _ResultHook(DisplayHook):
    """Puts the last expression's bundle into the cell's record instead of on the screen."""

    shell: Any

    def write_output_prompt(self) -> None:
        pass

    def compute_format_data(self, result: Any) -> Any:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(min(limit, FORMATTING_RECURSION))
        try:
            return super().compute_format_data(result)
        finally:
            sys.setrecursionlimit(limit)

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        self.shell.record.set_result(format_dict)

    def log_output(self, format_dict: dict[str, Any]) -> None:
        """Keep no second copy of each result: `Out` has the object."""

    def finish_displayhook(self) -> None:
        self._is_active = False


class _Publisher(DisplayPublisher):
    """`display(...)`: its plain text goes into the output where it belongs, a rich bundle into the record as well."""

    shell: Any

    def publish(
        self,
        data: Any,
        metadata: Any = None,
        source: Any = None,
        *,
        transient: Any = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        self._validate_data(data, metadata)
        text = data.get("text/plain")
        if isinstance(text, str):
            print(text if len(text) <= RESULT_LIMIT else text[:RESULT_LIMIT])  # noqa: T201
        if set(data) - {"text/plain"}:
            self.shell.record.add_display(data)

    def clear_output(self, wait: bool = False) -> None:
        """Output that was written stays written: it is a log, not a screen."""


class _Exit(ExitAutocall):
    """`exit` and `quit`: end the cell, as `sys.exit` does."""

    def __call__(self, code: Any = None) -> NoReturn:
        __tracebackhide__ = True
        raise SystemExit(code)


class KernelShell(InteractiveShell):
    """The shell of one kernel. `record` belongs to the cell that runs."""

    display_formatter: Any
    history_manager: Any
    displayhook_class = Type(_ResultHook)
    display_pub_class = Type(_Publisher)

    def __init__(self) -> None:
        self.record = CellRecord()
        self._preloaded: list[ModuleType] = []
        self.user_code: Callable[[], AbstractContextManager[None]] = nullcontext
        config = Config()
        config.InteractiveShell.colors = "nocolor"
        config.InteractiveShell.xmode = "Context"
        config.InteractiveShell.warn_venv = False
        config.Completer.use_jedi = False
        super().__init__(config=config, exiter=_Exit())
        self.set_hook("show_in_pager", page.as_hook(page.display_page), 99)
        self.register_magics(commands.Scripts)
        _refuse_questions()
        text = self.display_formatter.formatters["text/plain"]
        for kind in (str, bytes, bytearray):
            text.for_type(kind, _pretty_sequence)
        text.for_type(CoroutineType, _pretty_coroutine)

    def preload(self, *modules: ModuleType) -> None:
        """Have `modules` in the namespace, as if imported, also after `%reset`; `%who` does not list them."""
        self._preloaded += modules
        self._put(modules)

    def init_user_ns(self) -> None:
        super().init_user_ns()
        self._put(self._preloaded)

    def _put(self, modules: Iterable[ModuleType]) -> None:
        entries = {module.__name__: module for module in modules}
        self.user_ns.update(entries)
        self.user_ns_hidden.update(entries)

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        with self.user_code():
            failed: bool = await super().run_code(code_obj, result, async_=async_)
            return failed

    def ask_exit(self) -> NoReturn:
        raise SystemExit

    def enable_gui(self, gui: str | None = None) -> None:
        """For `%matplotlib inline`, which is how things are anyway; there is no screen for another toolkit."""
        if gui is not None:
            raise UsageError(f"there is no screen here for {gui!r}: plots are shown inline")

    def init_ipython_dir(self, ipython_dir: str | None) -> None:
        self.ipython_dir = ""

    def init_profile_dir(self, profile_dir: Any) -> None:
        self.profile_dir = None

    def init_history(self) -> None:
        """`In` and `Out` in memory only: no file, no database, no thread."""
        self.history_manager = HistoryManager(shell=self, parent=self, enabled=False, hist_file=":memory:")
        self.db = {}  # what %bookmark and %store keep, for as long as the kernel lives

    def init_virtualenv(self) -> None:
        """The kernel runs in the worker's own interpreter; nothing is spliced into `sys.path`."""

    def system(self, cmd: str) -> None:
        commands.system(self, self.var_expand(cmd, depth=1))

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        return commands.getoutput(self, self.var_expand(cmd, depth=depth + 1), split=split)

    def showtraceback(
        self,
        exc_tuple: tuple[type[BaseException], BaseException, TracebackType | None] | None = None,
        filename: str | None = None,
        tb_offset: int | None = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        info: Any = self._get_exc_info(exc_tuple)
        kind, error, trace = info
        try:
            if isinstance(error, UsageError):
                text = f"UsageError: {error}"
            elif isinstance(error, SyntaxError):
                frames: Any = traceback.extract_tb(trace) if running_compiled_code else []
                text = "\n".join(self.SyntaxTB.structured_traceback(kind, error, frames))
            elif exception_only:
                text = "\n".join(self.InteractiveTB.get_exception_only(kind, error))
            elif isinstance(error, BaseExceptionGroup):
                text = "".join(traceback.format_exception(kind, error, trace))
            else:
                trace, left_out = _shortened(trace)
                text = "\n".join(self.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=tb_offset))
                text += f"\n({left_out} frames in the middle were left out.)" if left_out else ""
        except Exception:  # noqa: BLE001  a hostile __str__ or source file breaks IPython's formatter
            text = f"{class_name(error)} (its traceback could not be formatted)"
        if error is self.record.shown:
            print(text)  # noqa: T201
        else:
            self.record.report(error, text)

    def showsyntaxerror(self, filename: str | None = None, running_compiled_code: bool = False) -> None:
        self.showtraceback(filename=filename, running_compiled_code=running_compiled_code)

    def _format_exception_for_storage(self, exception: BaseException, *_: Any, **__: Any) -> dict[str, Any]:
        """IPython would format every traceback a second time to keep it for ever."""
        return {"ename": type(exception).__name__, "evalue": "", "traceback": []}


def _shortened(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """The outer and the inner frames of a deep traceback, and how many are left out: IPython takes seconds for all.

    Without those of our own files, and those that ask to be hidden, which tell the model nothing.
    """
    links: list[TracebackType] = []
    link = trace
    while link is not None:
        hidden = link.tb_frame.f_locals.get("__tracebackhide__")  # IPython would show it nevertheless, if it raised
        if not hidden and not link.tb_frame.f_code.co_filename.startswith(_OUR_FILES):
            links.append(link)
        link = link.tb_next
    left_out = max(0, len(links) - 2 * FRAMES)
    if left_out:
        links[FRAMES:-FRAMES] = []
    shortened: TracebackType | None = None
    for link in reversed(links):
        shortened = TracebackType(shortened, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return shortened, left_out


def _pretty_sequence(value: Any, printer: Any, cycle: bool) -> None:
    """Show a str or bytes of any size without building a repr of all of it."""
    if len(value) <= (RESULT_LIMIT if len(printer.stack) == 1 else PREVIEW):  # more if it is the result itself
        printer.text(repr(value))
    else:
        printer.text(f"{value[:PREVIEW]!r}\n[... cut here: a {type(value).__name__} of length {len(value)} ...]")


def _pretty_coroutine(value: Any, printer: Any, cycle: bool) -> None:
    printer.text(f"{value!r}: it has not run, put `await` in front of it")


def _refuse_questions() -> None:
    """Make `input()` and `breakpoint()` fail at once, and say why: nobody sits at a kernel."""

    def refuse_input(prompt: object = "", /) -> NoReturn:
        __tracebackhide__ = True
        raise EOFError("input() has nobody to ask: stdin of a cell is empty. Put the value into the code instead.")

    def refuse_breakpoint(*_: Any, **__: Any) -> NoReturn:
        __tracebackhide__ = True
        raise RuntimeError("breakpoint() has no terminal here. Print what you need, or use %tb after the error.")

    builtins.input = refuse_input
    sys.breakpointhook = refuse_breakpoint
