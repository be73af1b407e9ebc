"""What a Connection keeps of one call's items: their state and both windows. Spec §6.3."""

from __future__ import annotations

from rlm_wire.frames.credit import ReceiveWindow, SendWindow
from rlm_wire.frames.state import CallState, Step, next_call_state


class Items:
    """Made when the first item, close or cancel of the call appears. `heard`: the peer's handler has said something."""

    __slots__ = ("cancelled", "heard", "receive", "send", "sliced", "state")

    def __init__(self, window: int) -> None:
        self.state = CallState.OPEN
        self.cancelled = False
        self.heard = False
        self.sliced = 0  # bytes received in Parts and not consumed
        self.send = SendWindow(window)
        self.receive = ReceiveWindow(window)

    def step(self, step: Step, call_id: int) -> None:
        self.state = next_call_state(self.state, step, call_id)
