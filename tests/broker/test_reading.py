"""The reader keeps what it has of a frame, whatever time passes and whatever else happens meanwhile."""

from __future__ import annotations

import trio
import trio.testing
from contract import calculator
from contract.calculator import Add

from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.session import open_peer
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.limits import Limits
from rlm_wire.frames.schema import Call
from rlm_wire.transports.adapter import TrioByteStream

CODEC = codec_named("msgpack")


def frame(call_id: int, x: int) -> bytes:
    body = CODEC.encode(Call(call_id, Add.method, Add(x, 1)))
    return len(body).to_bytes(4, "big") + body


async def test_b41_a_frame_that_comes_in_pieces_over_a_long_time_is_read_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    core = Connection(client=False, codec=CODEC, ours=Limits(), theirs=Limits())
    info = PeerInfo("a test", 1, "msgpack", [], Limits(), "")
    first, second = frame(1, 1), frame(3, 2)
    async with open_peer(core, TrioByteStream(ours, "memory", private=True), calculator.service, info) as peer:
        await theirs.send_all(first[:2])  # half of the length, and then nothing for two rounds of keep-alive
        await trio.sleep(25)
        for byte in first[2:]:
            await theirs.send_all(bytes([byte]))
            await trio.sleep(0.05)
        await theirs.send_all(second)
        received = b""
        while b"\x93\x13\x03\x03" not in received:
            received += await theirs.receive_some()
        assert b"\x93\x13\x01\x02" in received
        assert not peer.closed
