"""Why a prompt failed, as clients are told: an exception becomes a kind, and whether to try again. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from rlm_harness.acp.jsonrpc import INTERNAL_ERROR, RpcError
from rlm_harness.ledger.writer import LedgerError
from rlm_harness.model.interface import ModelError
from rlm_harness.secrets import UserError
from rlm_wire.errors import CallError, WireError


class Failure(msgspec.Struct, frozen=True):
    """`kind` is for programs; docs/acp.md lists them. `message` and `details` are for people."""

    kind: str
    message: str
    details: str
    retryable: bool = False

    @property
    def stop(self) -> str:
        """What the session's list calls it."""
        return {"workspace_lost": "workspace_lost", "model_refused": "refused"}.get(self.kind, "error")

    def answer(self, meta: dict[str, Any]) -> RpcError:
        """What the prompt is answered with; `meta` is how the session stands."""
        data = {"kind": self.kind, "retryable": self.retryable, "details": self.details, "_meta": meta}
        return RpcError(INTERNAL_ERROR, f"{self.message}: {self.details}", data)


def failure_of(error: Exception, *, opened: bool) -> Failure:
    """`opened`: the session was open already, so what is wrong now is not how it was asked for."""
    details = str(error)
    match error:
        case ModelError(refused=True):
            return Failure("model_refused", "the model gave no reply", details)
        case ModelError():
            return Failure("model_transport", "the model gave no reply", details, retryable=True)
        case LedgerError():
            return Failure("ledger", "the session cannot be recorded", details)
        case UserError() | CallError() if not opened:
            return Failure("configuration", "the session cannot be opened", details)
        case WireError():
            return Failure("workspace_lost", "the workspace is lost", details, retryable=not opened)
        case _:
            return Failure("internal", "the session has failed", f"{type(error).__name__}: {details}")
