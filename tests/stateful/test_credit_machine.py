"""One direction of items against a model: two windows, grants on the way, a reader that takes when it likes."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlm_wire.frames.credit import ReceiveWindow, SendWindow

WINDOW = 64


class CreditMachine(RuleBasedStateMachine):
    @initialize(growth=st.integers(0, 300))
    def begin(self, growth: int) -> None:
        self.sender, self.receiver = SendWindow(WINDOW), ReceiveWindow(WINDOW)
        self.growth_left = growth
        self.grown = 0
        self.on_the_way: deque[int] = deque()
        self.waiting: deque[int] = deque()
        self.grants: deque[int] = deque()

    @precondition(lambda self: self.sender.left > 0)
    @rule(size=st.integers(1, 200))
    def send(self, size: int) -> None:
        self.sender.spend(size)
        self.on_the_way.append(size)

    @precondition(lambda self: self.on_the_way)
    @rule()
    def arrive(self) -> None:
        size = self.on_the_way.popleft()
        self.receiver.receive_untrusted(size, 1)
        self.waiting.append(size)

    @precondition(lambda self: self.waiting)
    @rule()
    def consume(self) -> None:
        amount, growth = self.receiver.consume(self.waiting.popleft(), self.growth_left)
        self.growth_left -= growth
        self.grown += growth
        if amount:
            self.grants.append(amount)

    @precondition(lambda self: self.grants)
    @rule()
    def grant(self) -> None:
        self.sender.grant_untrusted(self.grants.popleft())

    @invariant()
    def bytes_are_conserved(self) -> None:
        if hasattr(self, "sender"):
            assert self.receiver.left == self.sender.left + sum(self.grants) + sum(self.on_the_way)
            assert self.growth_left >= 0
            assert self.receiver.size == WINDOW + self.grown

    @invariant()
    def nobody_is_stuck_when_all_is_consumed(self) -> None:
        if hasattr(self, "sender") and not (self.on_the_way or self.waiting or self.grants):
            assert self.sender.left > 0

    @invariant()
    def what_waits_is_bounded_by_the_window_and_one_item(self) -> None:
        if hasattr(self, "sender"):
            assert sum(self.waiting) + sum(self.on_the_way) < self.receiver.size + 200


TestCredit = CreditMachine.TestCase
TestCredit.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
