"""Two Connections joined by a link that chops bytes at will, and is cut at will, against a model that knows no bytes.

The model of a call is what the users of both sides did to it, in order. At any time what one side was told is a prefix
of what the other did; once everything has been carried and consumed, it is all of it: exactly once, in order within a
call, and every window is whole again.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rlm_wire.errors import CallError
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.events import CreditReceived, Ended, Event, ItemReceived
from rlm_wire.frames.framing import ReceiveBuffer
from rlm_wire.frames.limits import Limits
from rlm_wire.frames.schema import Call, Cancel, Close, Fail, Reply

LIMITS = Limits(frame=66_560, message=200_000, calls=2, replay=210_000, reassembly=420_000, item_window=3_000)
SIZES = st.sampled_from([1, 900, 3_001, 16_500, 70_000, 140_000])
WHICH = st.integers(0, 3)
SIDE = st.sampled_from([0, 1])


class Told:
    """One direction of one call: the steps taken on one side, each with a number of its own, and those heard there."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.heard: list[tuple[str, int]] = []
        self._next = 0

    def hear(self, step: tuple[str, int]) -> None:
        """Heard once and in order. A Cancel may have taken back what had not begun to leave, and nothing else may."""
        assert step in self.done[self._next :]
        at = self.done.index(step, self._next)
        skipped = self.done[self._next : at]
        assert all(kind in ("item", "close") for kind, _ in skipped)
        assert not skipped or step[0] == "cancel"
        self._next = at + 1
        self.heard.append(step)


class ModelCall:
    """`caller` tells its Call, items, close and cancel; the other side its items and the end."""

    def __init__(self, call_id: int, caller: int) -> None:
        self.id = call_id
        self.caller = caller
        self.told = {0: Told(), 1: Told()}  # by who tells
        self.sending_closed = {0: False, 1: False}
        self.arrived = self.ended = self.end_heard = self.withdrawn = False
        self.held: dict[int, deque[ItemReceived]] = {0: deque(), 1: deque()}


class ConnectionMachine(RuleBasedStateMachine):
    @initialize(codec=st.sampled_from(["msgpack", "json"]))
    def begin(self, codec: str) -> None:
        one = codec_named(codec)
        self.sides = [Connection(client=client, codec=one, ours=LIMITS, theirs=LIMITS) for client in (True, False)]
        self.calls: dict[int, ModelCall] = {}
        self.links = [bytearray(), bytearray()]  # bytes from side 0, from side 1
        self.serial = 0
        for side in (0, 1, 0, 1):  # something to work with from the start
            self.call(side, 1)
            self.carry_all(side)

    # ------------------------------------------------------------ what users do

    @rule(side=SIDE, size=SIZES)
    def call(self, side: int, size: int) -> None:
        mine = [call for call in self.calls.values() if call.caller == side and not call.end_heard]
        if len(mine) == LIMITS.calls:
            with pytest.raises(CallError, match="in flight"):
                self.sides[side].call("m", None)
            return
        call_id = self.sides[side].call("m", self.value(size))
        assert call_id not in self.calls
        self.calls[call_id] = ModelCall(call_id, side)
        self.calls[call_id].told[side].done.append(("call", self.serial))

    @rule(side=SIDE, which=WHICH, size=SIZES)
    def send_item(self, side: int, which: int, size: int) -> None:
        call = self.pick(side, which, lambda call: not call.sending_closed[side])
        if call is not None and self.sides[side].may_send_item(call.id):
            self.sides[side].send_item(call.id, self.value(size))
            call.told[side].done.append(("item", self.serial))

    @rule(side=SIDE, which=WHICH)
    def close_sending(self, side: int, which: int) -> None:
        call = self.pick(side, which, lambda call: not call.sending_closed[side])
        if call is not None:
            self.sides[side].close_sending(call.id)
            call.sending_closed[side] = True
            call.told[side].done.append(("close", 0))

    @rule(side=SIDE, which=WHICH, size=SIZES, fails=st.booleans())
    def end(self, side: int, which: int, size: int, fails: bool) -> None:
        call = self.pick(side, which, lambda call: call.caller != side and call.held[side])
        call = call or self.pick(side, which, lambda call: call.caller != side)
        if call is not None:
            self.finish(call, "fail" if fails else "reply", size)

    @rule(side=SIDE, which=WHICH)
    def cancel(self, side: int, which: int) -> None:
        call = self.pick(side, which, lambda call: call.caller == side)
        if call is None:
            return
        done = call.told[side].done
        if self.sides[side].cancel(call.id):
            assert not call.arrived
            call.withdrawn = call.ended = call.end_heard = True
        elif ("cancel", 0) not in done:
            done.append(("cancel", 0))
            call.sending_closed[side] = True

    @rule(side=SIDE, which=WHICH, count=st.integers(1, 9))
    def consume(self, side: int, which: int, count: int) -> None:
        holding = [call for call in self.calls.values() if call.held[side]]
        if holding:
            call = holding[which % len(holding)]
            for _ in range(min(count, len(call.held[side]))):
                self.sides[side].consumed(call.id, call.held[side].popleft())

    # --------------------------------------------------------- what the link does

    @rule(side=SIDE, limit=st.sampled_from([1, 20_000, 70_000, 300_000]))
    def write(self, side: int, limit: int) -> None:
        for piece in self.sides[side].data_to_send(limit):
            self.links[side] += piece

    @rule(side=SIDE, size=st.sampled_from([1, 3, 5, 1_000, 65_536, 1_000_000]))
    def carry(self, side: int, size: int) -> None:
        self.deliver(side, size)

    @rule(side=SIDE)
    def carry_all(self, side: int) -> None:
        self.write(side, 1_000_000)
        self.deliver(side, len(self.links[side]))

    @rule()
    def cut(self) -> None:
        """What is on the way is lost, half a frame that arrived too; both go on over a new link."""
        for link in self.links:
            link.clear()
        received = [side.frames_received for side in self.sides]
        for side in (0, 1):
            self.sides[side].resume(received[1 - side], ReceiveBuffer(LIMITS.frame))

    # ----------------------------------------------------------------- what holds

    @invariant()
    def nobody_broke_a_rule(self) -> None:
        if hasattr(self, "sides"):
            assert not any(side.ended for side in self.sides)

    def teardown(self) -> None:
        if not hasattr(self, "sides"):
            return
        self.settle()
        self.answer_all()
        self.settle()
        for call in self.calls.values():
            self.check_call(call)
        for side in self.sides:
            self.check_idle(side)

    def answer_all(self) -> None:
        for call in self.calls.values():
            if call.arrived and not call.ended:
                self.finish(call, "reply", 1)

    def settle(self) -> None:
        """Carries and consumes until nothing moves."""
        moving = True
        while moving:
            moving = False
            for side in (0, 1):
                for call in self.calls.values():
                    while call.held[side]:
                        self.sides[side].consumed(call.id, call.held[side].popleft())
                        moving = True
                for piece in self.sides[side].data_to_send(100_000):
                    self.links[side] += piece
                while self.links[side]:
                    self.deliver(side, 50_000)
                    moving = True

    # -------------------------------------------------------------------- details

    def value(self, size: int) -> bytes:
        """A value that no other is like, of about `size` bytes."""
        self.serial += 1
        return self.serial.to_bytes(4, "big") + b"v" * size

    def finish(self, call: ModelCall, kind: str, size: int) -> None:
        value, side = self.value(size), 1 - call.caller
        if kind == "fail":
            call.held[side].clear()  # whoever fails leaves what it has not consumed, as does a caller that hears of it
            self.sides[side].fail(call.id, CallError("internal", "x", data=value))
        else:
            self.sides[side].reply(call.id, value)
        call.ended = True
        call.told[side].done.append((kind, self.serial))

    def pick(self, side: int, which: int, condition: Any) -> ModelCall | None:
        """A call that `side` may do something to."""
        usable = [
            call
            for call in self.calls.values()
            if condition(call)
            and not (call.end_heard if call.caller == side else call.ended)
            and (call.caller == side or call.arrived)
        ]
        return usable[which % len(usable)] if usable else None

    def deliver(self, side: int, size: int) -> None:
        link, receiver = self.links[side], self.sides[1 - side]
        chunk = bytes(link[:size])
        while chunk:
            space = receiver.writable()
            count = min(len(space), len(chunk))
            space[:count] = chunk[:count]
            chunk = chunk[count:]
            del link[:count]
            for event in receiver.received(count):
                self.hear(1 - side, event)

    def hear(self, side: int, event: Event) -> None:
        assert not isinstance(event, Ended), event.error
        if isinstance(event, CreditReceived):
            return
        call = self.calls[event.id]  # type: ignore[union-attr]
        told = call.told[1 - side]
        match event:
            case Call():
                call.arrived = True
                told.hear(("call", self.serial_in(side, event.params)))
            case ItemReceived():
                told.hear(("item", self.serial_in(side, event.value)))
                call.held[side].append(msgspec.structs.replace(event, value=b""))
            case Close():
                told.hear(("close", 0))
            case Cancel():
                told.hear(("cancel", 0))
            case Reply():
                told.hear(("reply", self.serial_in(side, event.result)))
                call.end_heard = True
            case Fail():
                told.hear(("fail", self.serial_in(side, event.data)))
                call.held[side].clear()
                call.end_heard = True

    def serial_in(self, side: int, value: Any) -> int:
        return int.from_bytes(self.sides[side].codec.decode_value(value, bytes, "")[:4], "big")

    def check_call(self, call: ModelCall) -> None:
        """Both ends agree: all that the answering side did was heard; of the caller, all that was not late."""
        told, answered = call.told[call.caller], call.told[1 - call.caller]
        if call.withdrawn:
            assert told.heard == answered.done == []
        else:
            assert told.heard[0] == told.done[0]
            assert answered.heard == answered.done
            assert call.end_heard

    def check_idle(self, side: Connection) -> None:
        assert side.queued == 0
        assert side.data_to_send(1 << 20) == []
        assert side._calls == {}
        assert side._open_here == side._open_there == 0
        assert side._parts_to_send.left == side.limits.reassembly
        assert side._assembly._left == side.limits.reassembly
        assert side._assembly._messages == {}


TestConnections = ConnectionMachine.TestCase
TestConnections.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
