"""What leaves a session whose peer reads slowly, or breaks the rules."""

from __future__ import annotations

import trio
import trio.testing
from contract import calculator
from contract.calculator import Echo

import rlm_wire
from rlm_wire.broker.info import PeerInfo
from rlm_wire.broker.session import open_peer
from rlm_wire.broker.writer import BACKLOG, FLOODED
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.connection import Connection
from rlm_wire.frames.framing import ReceiveBuffer
from rlm_wire.frames.limits import Limits
from rlm_wire.frames.schema import Call
from rlm_wire.transports.adapter import TrioByteStream

INFO = PeerInfo("a test", 1, "msgpack", [], Limits(), "")
CODEC = codec_named("msgpack")


def frame(value: object) -> bytes:
    body = CODEC.encode(value)
    return len(body).to_bytes(4, "big") + body


def connection() -> Connection:
    return Connection(client=False, codec=CODEC, ours=Limits(), theirs=Limits())


async def test_a_peer_that_breaks_the_rules_hears_why_on_a_stream_that_cannot_send_at_once() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    stream = TrioByteStream(ours, "memory", private=True)
    async with open_peer(connection(), stream, calculator.service, INFO) as peer:
        await theirs.send_all(b"\xff\xff\xff\xff")
        await peer.wait_closed()
        buffer = ReceiveBuffer(Limits().frame)
        received = await theirs.receive_some()
        buffer.writable()[: len(received)] = received
        buffer.wrote(len(received))
        body = buffer.next_body_untrusted()
        assert body is not None
        goodbye = CODEC.decode_frame_untrusted(body)
        assert type(goodbye).__name__ == "Goodbye"
        assert "limit" in goodbye.message  # type: ignore[union-attr]


async def test_handlers_wait_with_their_answers_for_a_peer_that_does_not_read() -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    service = rlm_wire.Service()
    size = 4 * 1024 * 1024
    answered = 0

    @service.handle(Echo)
    async def echo(request: Echo) -> bytes:
        nonlocal answered
        answered += 1
        return b"x" * size

    core = connection()
    async with open_peer(core, TrioByteStream(ours, "memory", private=True), service, INFO) as peer:
        calls = 3 * BACKLOG // size
        await theirs.send_all(b"".join(frame(Call(2 * n + 1, Echo.method, Echo(b""))) for n in range(calls)))
        await trio.testing.wait_all_tasks_blocked()
        assert answered == calls
        assert BACKLOG - size < core.queued <= BACKLOG + 2 * size
        peer.lose(rlm_wire.SessionLost("enough"))


async def test_calls_of_a_peer_that_sends_and_does_not_read_are_refused_and_memory_stays_bounded() -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    service = rlm_wire.Service()
    size = 8 * 1024 * 1024
    result = b"x" * size
    answered = 0

    @service.handle(Echo)
    def echo(request: Echo) -> bytes:
        nonlocal answered
        answered += 1
        return result

    core = connection()
    async with open_peer(core, TrioByteStream(ours, "memory", private=True), service, INFO) as peer:
        calls = 2 * FLOODED // size
        for number in range(calls):
            await theirs.send_all(frame(Call(2 * number + 1, Echo.method, Echo(b""))))
        await trio.testing.wait_all_tasks_blocked()
        assert 0 < answered < calls
        assert core.queued <= FLOODED + 2 * size
        peer.lose(rlm_wire.SessionLost("enough"))
