"""The tables, walked in full: every state with every step."""

from __future__ import annotations

import itertools

import pytest

from rlm_wire.errors import LocalProtocolError, RemoteProtocolError
from rlm_wire.frames.schema import Agreement, Challenge, Goodbye, Hello, Proof, Welcome
from rlm_wire.frames.state import CALL, LINK, CallState, Link, Step, next_call_state, next_link_state

MAY_SEND = {CallState.OPEN, CallState.RECEIVING_CLOSED}
MAY_RECEIVE = {CallState.OPEN, CallState.SENDING_CLOSED}


def expected(state: CallState, step: Step) -> CallState | None:
    """What the prose says: each direction is open or closed; items and a close need it open, a cancel closes it."""
    sending, receiving = state in MAY_SEND, state in MAY_RECEIVE
    if step in (Step.SEND_ITEM, Step.SEND_CLOSE) and not sending:
        return None
    if step in (Step.RECEIVE_ITEM, Step.RECEIVE_CLOSE) and not receiving:
        return None
    sending = sending and step not in (Step.SEND_CLOSE, Step.SEND_CANCEL)
    receiving = receiving and step not in (Step.RECEIVE_CLOSE, Step.RECEIVE_CANCEL)
    return {
        (True, True): CallState.OPEN,
        (False, True): CallState.SENDING_CLOSED,
        (True, False): CallState.RECEIVING_CLOSED,
        (False, False): CallState.BOTH_CLOSED,
    }[sending, receiving]


@pytest.mark.parametrize(("state", "step"), list(itertools.product(CallState, Step)))
def test_each_step_of_a_call_leads_where_the_prose_says_or_is_refused(state: CallState, step: Step) -> None:
    """[R-6.3.5] [R-6.6.2]"""
    after = expected(state, step)
    assert CALL.get((state, step)) is after
    if after is not None:
        assert next_call_state(state, step, 1) is after
    else:
        with pytest.raises(LocalProtocolError if step.name.startswith("SEND") else RemoteProtocolError):
            next_call_state(state, step, 1)


AGREEMENT = Agreement(1, "json", [], None, "")  # type: ignore[arg-type]
FRAMES = [
    Hello([1], ["json"], [], None, b"", ""),  # type: ignore[arg-type]
    Challenge(AGREEMENT, b""),
    Proof(b""),
    Welcome(""),
    Goodbye("", ""),
]


@pytest.mark.parametrize(("state", "frame"), list(itertools.product(Link, FRAMES)), ids=str)
def test_each_frame_of_the_handshake_is_expected_or_refused(state: Link, frame: object) -> None:
    """[R-3.1.2]"""
    expects = {
        Link.HELLO_SENT: {"Challenge", "Welcome", "Goodbye"},
        Link.PROOF_SENT: {"Welcome", "Goodbye"},
        Link.EXPECTING_HELLO: {"Hello", "Goodbye"},
        Link.EXPECTING_PROOF: {"Proof", "Goodbye"},
    }.get(state, set())
    if type(frame).__name__ in expects:
        assert next_link_state(state, frame) is LINK[state, type(frame).__name__]
    else:
        with pytest.raises(RemoteProtocolError, match="is not allowed when"):
            next_link_state(state, frame)
