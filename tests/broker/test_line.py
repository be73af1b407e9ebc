"""A link that is left: nothing more is taken from it, whatever had arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
from frames.joined import bodies, encoded, pair

from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.link import Buffer
from rlm_wire.broker.peer import Peer
from rlm_wire.broker.services import Service
from rlm_wire.broker.writer import Writer
from rlm_wire.frames.framing import ReceiveBuffer
from rlm_wire.frames.limits import Limits
from rlm_wire.frames.schema import Call, Goodbye

TAKEN_OVER = Goodbye("unavailable", "another")


class LateLink:
    """Brings a Call in the very moment in which the session leaves it."""

    description = "late:"
    private = True
    channel_binding = b""

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.sent = b""

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        assert self.peer is not None
        data = encoded(Call(1, "late.call", None))
        buffer[: len(data)] = data
        self.peer.leave_link(TAKEN_OVER)
        return len(data)

    async def send(self, data: Sequence[Buffer]) -> None:
        await trio.lowlevel.checkpoint()
        self.sent += b"".join(data)

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        self.sent += b"".join(data)
        return sum(map(len, data))

    def diagnose(self) -> str:
        return ""


async def test_what_arrives_when_the_link_is_left_does_not_count() -> None:
    """[R-7.3.8] Its sender will be told that it did not arrive, and sends it again."""
    _, core = pair()
    link: Any = LateLink()
    link.peer = peer = Peer(core, Service(), PeerInfo("x", 1, "msgpack", [], Limits(), ""), "late:", resumable=True)
    peer.ready.set()
    await peer.run_link(link, None)
    assert peer.state == "reconnecting"
    assert peer.frames_received == 0
    assert link.sent == encoded(TAKEN_OVER)


class HalfLink(LateLink):
    """Takes half of what may be sent at once, and then nothing; brings nothing."""

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.sleep_forever()
        raise AssertionError

    async def send(self, data: Sequence[Buffer]) -> None:
        await trio.sleep_forever()

    def send_nowait(self, data: Sequence[Buffer]) -> int:
        whole = b"".join(data)
        self.sent += whole[: len(whole) // 2]
        return len(whole) // 2


async def test_what_was_half_sent_over_one_link_is_sent_whole_over_the_next() -> None:
    """[R-7.3.10]"""
    core, _ = pair()
    writer = Writer(core)
    first: Any = HalfLink()
    second: Any = LateLink()
    writer.use(first)
    core.call("m", None)
    writer.flush()
    writer.leave(TAKEN_OVER)
    core.resume(0, ReceiveBuffer(Limits().frame))
    async with trio.open_nursery() as nursery:
        writer.use(second)
        nursery.start_soon(writer.run)
        await writer.drain()
        nursery.cancel_scope.cancel()
    assert [type(frame).__name__ for frame in map(core.codec.decode_frame_untrusted, bodies(second.sent))] == ["Call"]
