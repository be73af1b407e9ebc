"""Cells: harness → worker (`kernel.execute`), and worker → kernel process (`cell.run`)."""

from __future__ import annotations

from typing import Literal, Never

import msgspec

from rlm_wire.methods.base import Request, StreamRequest
from rlm_wire.methods.skills import Skills
from rlm_wire.methods.tools import Output, OutputChunk

CellStatus = Literal["ok", "error", "timed_out", "interrupted", "kernel_died", "not_run"]


class Display(msgspec.Struct, frozen=True):
    """One rich result as its MIME bundle, in two parts, since JSON cannot tell bytes from text.

    `text` holds text types (text/html, image/svg+xml, JSON as text), `binary` the others (image/png), decoded.
    """

    text: dict[str, str] = {}
    binary: dict[str, bytes] = {}

    @property
    def data(self) -> dict[str, str | bytes]:
        """The whole bundle, by MIME type."""
        return {**self.text, **self.binary}


class CellError(msgspec.Struct, frozen=True):
    """The exception that ended a cell; `traceback` has no colour codes."""

    name: str
    message: str
    traceback: str


class CellResult(msgspec.Struct, frozen=True):
    """How a cell ended; `result` is the text/plain of its last expression, `displays` every rich result in order.

    `notices` tell what the model must know and cannot see: a kernel that was restarted, and what was lost with it.
    `skill_calls` counts the calls of skills that the cell made, by name.
    """

    status: CellStatus
    output: Output
    result: str | None = None
    displays: list[Display] = []
    error: CellError | None = None
    notices: list[str] = []
    duration: float = 0.0
    skill_calls: dict[str, int] = {}


class Execute(StreamRequest[CellResult, OutputChunk, Never], tag="kernel.execute"):
    """Run one cell in the agent's IPython kernel; cells of one kernel run one after another, in order of arrival.

    `timeout` in seconds, from when the cell starts, without the time in which the cell waits for callbacks; a wait for
    a skill that is longer than it ends the cell. Cancelling interrupts the cell and answers the partial result. `scope`
    is an unguessable word of the caller's: what the cell calls at the caller is stamped with it (spec §6.7); None if
    nothing there will answer. Fails with `failed_precondition` if the call is made for a cell of the same agent, which
    could not end before it. The cell can count on `ledger_size` bytes of the ledger (see `ReplicateLedger`; None: on
    what the worker has).
    """

    agent: str
    code: str
    timeout: float | None = None
    scope: str | None = None
    ledger_size: int | None = None


class Variable(msgspec.Struct, frozen=True):
    """`type` with its module unless that is builtins or the session's own; `size` in bytes, without what it refers to.

    `length` is of built-in containers and texts only. Names and types are cut after 200 characters.
    """

    name: str
    type: str
    size: int
    length: int | None = None


class KernelVariables(msgspec.Struct, frozen=True):
    """The user's variables, at most 1000 of `total`; `running`: a cell runs at this moment."""

    variables: list[Variable] = []
    total: int = 0
    running: bool = False


class InspectKernel(Request[KernelVariables], tag="kernel.inspect"):
    """What the agent's kernel holds, also while a cell runs; empty if it has no kernel. Runs no code of the user's.

    Fails with `unavailable` if the kernel does not answer within 5 s: a cell holds the interpreter in C code.
    """

    agent: str


class Interrupted(msgspec.Struct, frozen=True):
    """`running`: there was a cell to interrupt."""

    running: bool


class InterruptKernel(Request[Interrupted], tag="kernel.interrupt"):
    """Interrupt the cell that runs, as Ctrl-C does; its own call then answers. It may ignore it: to insist, cancel."""

    agent: str


class CellOutcome(msgspec.Struct, frozen=True):
    """Kernel → worker: what only the kernel knows of a finished cell; its output travels by pipe."""

    status: Literal["ok", "error", "interrupted"]
    result: str | None = None
    displays: list[Display] = []
    error: CellError | None = None
    notices: list[str] = []


class EnterWorkspace(Request[None], tag="cell.enter"):
    """Worker → fresh kernel, before its first cell: work in directory `cwd` (absolute) with exactly `env`.

    Its cells have `skills`. `guard_git`: cells with a git command that looks further than they may are not run.
    """

    cwd: str
    env: dict[str, str]
    skills: Skills | None = None
    guard_git: bool = False


class LeaveWorkspace(Request[None], tag="cell.leave"):
    """Worker → idle kernel: the session ends next, and is meant to."""


class InspectNamespace(Request[KernelVariables], tag="cell.inspect"):
    """Worker → kernel: answered beside a running cell."""


class InterruptCell(Request[None], tag="cell.interrupt"):
    """Worker → kernel, beside a SIGINT: it is for cell `number`, also if that has not begun yet, and for no other."""

    number: int


class RunCell(Request[CellOutcome], tag="cell.run"):
    """Worker → kernel: run `code` as cell number `number` (from 1); what it calls is stamped with `scope`.

    `ledger_size` as in `Execute`.
    """

    code: str
    number: int
    scope: str
    ledger_size: int | None = None
