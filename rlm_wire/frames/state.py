"""What may follow what, as tables. No bytes, no roles, no windows.

Theory of operation
-------------------
*A link* (one byte stream) goes through the handshake. Its states are those of the side that looks at it; the client
starts in HELLO_SENT, the server in EXPECTING_HELLO. Whatever the tables do not list is a protocol error.

*A call* has two directions of items and one end. Each side keeps its own view, in which `send` is what this side does
and `receive` what the other does. Only the handler ends a call (Reply or Fail); only the caller cancels it. A Cancel
also closes the caller's direction: it has nothing more to say. Cancelling twice is harmless and goes unsaid.

    OPEN ──close sent──▶ SENDING_CLOSED ──close received──▶ BOTH_CLOSED
      └──close received──▶ RECEIVING_CLOSED ──close sent──────▲            and from each: end ──▶ DONE

Between a side that ends a call and the other that has not heard of it yet, frames of that call still arrive: they
are late, not wrong. So a frame for a call that is no longer known is dropped (spec §6.5), and only a Reply, a Fail or
an Item for an id this side never used is an error.
"""

from __future__ import annotations

import enum
from typing import Final

from rlm_wire.errors import LocalProtocolError, RemoteProtocolError


class Link(enum.Enum):
    """States of the handshake on one byte stream. Spec §3."""

    HELLO_SENT = enum.auto()
    PROOF_SENT = enum.auto()
    EXPECTING_HELLO = enum.auto()
    EXPECTING_PROOF = enum.auto()
    OPEN = enum.auto()
    REFUSED = enum.auto()


LINK: Final = {
    (Link.HELLO_SENT, "Challenge"): Link.PROOF_SENT,
    (Link.HELLO_SENT, "Welcome"): Link.OPEN,
    (Link.HELLO_SENT, "Goodbye"): Link.REFUSED,
    (Link.PROOF_SENT, "Welcome"): Link.OPEN,
    (Link.PROOF_SENT, "Goodbye"): Link.REFUSED,
    (Link.EXPECTING_HELLO, "Hello"): Link.EXPECTING_PROOF,
    (Link.EXPECTING_HELLO, "Goodbye"): Link.REFUSED,
    (Link.EXPECTING_PROOF, "Proof"): Link.OPEN,
    (Link.EXPECTING_PROOF, "Goodbye"): Link.REFUSED,
}
"""A server that needs no proof goes from EXPECTING_HELLO straight to OPEN: see `ServerHandshake`."""


class CallState(enum.Enum):
    """States of one call, as one side sees it. Spec §6."""

    OPEN = enum.auto()
    SENDING_CLOSED = enum.auto()
    RECEIVING_CLOSED = enum.auto()
    BOTH_CLOSED = enum.auto()


class Step(enum.Enum):
    """What happens to a call short of its end."""

    SEND_ITEM = "send an item"
    SEND_CLOSE = "close sending"
    RECEIVE_ITEM = "receive an item"
    RECEIVE_CLOSE = "receive a close"
    SEND_CANCEL = "cancel"
    RECEIVE_CANCEL = "receive a cancel"


CALL: Final = {
    (CallState.OPEN, Step.SEND_ITEM): CallState.OPEN,
    (CallState.OPEN, Step.SEND_CLOSE): CallState.SENDING_CLOSED,
    (CallState.OPEN, Step.SEND_CANCEL): CallState.SENDING_CLOSED,
    (CallState.OPEN, Step.RECEIVE_ITEM): CallState.OPEN,
    (CallState.OPEN, Step.RECEIVE_CLOSE): CallState.RECEIVING_CLOSED,
    (CallState.OPEN, Step.RECEIVE_CANCEL): CallState.RECEIVING_CLOSED,
    (CallState.SENDING_CLOSED, Step.RECEIVE_ITEM): CallState.SENDING_CLOSED,
    (CallState.SENDING_CLOSED, Step.RECEIVE_CLOSE): CallState.BOTH_CLOSED,
    (CallState.SENDING_CLOSED, Step.SEND_CANCEL): CallState.SENDING_CLOSED,
    (CallState.SENDING_CLOSED, Step.RECEIVE_CANCEL): CallState.BOTH_CLOSED,
    (CallState.RECEIVING_CLOSED, Step.SEND_ITEM): CallState.RECEIVING_CLOSED,
    (CallState.RECEIVING_CLOSED, Step.SEND_CLOSE): CallState.BOTH_CLOSED,
    (CallState.RECEIVING_CLOSED, Step.SEND_CANCEL): CallState.BOTH_CLOSED,
    (CallState.RECEIVING_CLOSED, Step.RECEIVE_CANCEL): CallState.RECEIVING_CLOSED,
    (CallState.BOTH_CLOSED, Step.SEND_CANCEL): CallState.BOTH_CLOSED,
    (CallState.BOTH_CLOSED, Step.RECEIVE_CANCEL): CallState.BOTH_CLOSED,
}

_OURS: Final = {Step.SEND_ITEM, Step.SEND_CLOSE, Step.SEND_CANCEL}


def next_call_state(state: CallState, step: Step, call_id: int) -> CallState:
    """The state after `step`. A forbidden step raises LocalProtocolError if it is ours, else RemoteProtocolError."""
    after = CALL.get((state, step))
    if after is None:
        error = LocalProtocolError if step in _OURS else RemoteProtocolError
        raise error(f"call {call_id}: cannot {step.value} when {state.name.lower().replace('_', ' ')}")
    return after


def next_link_state(state: Link, frame: object) -> Link:
    """The state after the peer sent `frame`. RemoteProtocolError if it may not come now."""
    after = LINK.get((state, type(frame).__name__))
    if after is None:
        raise RemoteProtocolError(f"{type(frame).__name__} is not allowed when {state.name.lower().replace('_', ' ')}")
    return after
