"""Rules of the specification that need time or a service: deadlines, keepalive, and what handlers' failures become."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Never

import pytest
import trio
import trio.testing
from frames.joined import encoded

import rlm_wire
from rlm_wire.frames.codec import codec_named
from rlm_wire.frames.framing import ReceiveBuffer
from rlm_wire.frames.handshake import ClientHandshake, ServerHandshake, Side
from rlm_wire.frames.limits import FRAME_LIMIT, PREFACE
from rlm_wire.frames.schema import Close, Fail, Goodbye, Item, Ping, Reply
from rlm_wire.transports import ByteStream, Listener, transport_for

URL = "memory:rules"


class Echo(rlm_wire.Request[int], tag="rules.echo"):
    number: int


class Sleep(rlm_wire.Request[None], tag="rules.sleep"):
    pass


class Break(rlm_wire.Request[None], tag="rules.break"):
    code: str = ""


def make_service() -> rlm_wire.Service:
    service = rlm_wire.Service()

    @service.handle(Echo)
    def echo(request: Echo) -> int:
        return request.number

    @service.handle(Sleep)
    async def sleep(request: Sleep) -> None:
        await trio.sleep_forever()

    @service.handle(Break)
    def break_(request: Break) -> None:
        if request.code:
            code: Any = request.code
            raise rlm_wire.CallError(code, "as asked")
        raise RuntimeError("the password is hunter2")

    return service


@asynccontextmanager
async def raw_stream() -> AsyncIterator[ByteStream]:
    """A stream to the server at URL, on which nothing has been said."""
    transport, address = transport_for(URL)
    async with transport.connect(address) as stream:
        yield stream


async def read_to_end(stream: ByteStream) -> bytes:
    received, space = b"", bytearray(65_536)
    while count := await stream.receive_into(memoryview(space)):
        received += space[:count]
    return received


async def test_a_silent_client_is_dropped_after_five_seconds(autojump_clock: trio.testing.MockClock) -> None:
    """[R-3.5.1]"""
    async with rlm_wire.serve(URL, make_service()), raw_stream() as stream:
        with trio.move_on_after(4.9) as early:
            await read_to_end(stream)
        assert early.cancelled_caught
        with trio.fail_after(0.2):
            await read_to_end(stream)


async def test_a_client_that_trickles_its_hello_is_dropped_all_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[R-3.5.1]"""
    async with rlm_wire.serve(URL, make_service()), raw_stream() as stream:
        with trio.fail_after(5.2):
            async with trio.open_nursery() as nursery:

                async def trickle() -> None:
                    with suppress(rlm_wire.TransportError):  # the drop may be seen here first
                        for byte in PREFACE + (60_000).to_bytes(4, "big") + bytes(60_000):
                            await stream.send([bytes([byte])])
                            await trio.sleep(1)

                nursery.start_soon(trickle)
                await read_to_end(stream)
                nursery.cancel_scope.cancel()


async def test_a_silent_server_is_given_up_after_five_seconds(autojump_clock: trio.testing.MockClock) -> None:
    """[R-3.5.2]"""
    transport, address = transport_for(URL)
    async with transport.listen(address):
        with trio.fail_after(5.1):
            with pytest.raises(rlm_wire.HandshakeError, match="no handshake within 5 s, nothing was received"):
                async with rlm_wire.connect(URL):
                    pass


async def test_the_oldest_of_too_many_strangers_is_dropped(autojump_clock: trio.testing.MockClock) -> None:
    """[R-3.5.3]"""
    async with rlm_wire.serve(URL, make_service()), AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(raw_stream()) for _ in range(65)]
        with trio.fail_after(1):
            await read_to_end(streams[0])
        with trio.move_on_after(1) as waiting:
            await read_to_end(streams[1])
        assert waiting.cancelled_caught
        async with rlm_wire.connect(URL) as peer:
            assert await peer.call(Echo(7)) == 7


async def shaken(stream: ByteStream) -> ReceiveBuffer:
    """Shakes hands as a client that will say no more."""
    handshake = ClientHandshake(Side("test/1", bytes(16), private=True))
    while handshake.outcome is None:
        await stream.send(handshake.data_to_send())
        handshake.received(await stream.receive_into(handshake.buffer.writable()))
    handshake.buffer.frame_limit = FRAME_LIMIT
    return handshake.buffer


async def test_a_peer_is_asked_after_ten_silent_seconds_and_given_up_after_thirty(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[R-4.3.2]"""
    async with rlm_wire.serve(URL, make_service()), raw_stream() as stream:
        buffer = await shaken(stream)
        frames = []
        with trio.move_on_after(29) as early:
            while count := await stream.receive_into(buffer.writable()):
                buffer.wrote(count)
                while (body := buffer.next_body_untrusted()) is not None:
                    frames.append(codec_named("msgpack").decode_frame_untrusted(body))
        assert early.cancelled_caught
        assert [type(frame) for frame in frames] == [Ping, Ping]
        with trio.fail_after(2):
            await read_to_end(stream)


class Numbers(rlm_wire.StreamRequest[int, int, Never], tag="rules.numbers"):
    pass


@asynccontextmanager
async def hostile_server(answer: bytes) -> AsyncIterator[None]:
    """A server that shakes hands at URL, and sends `answer` in one piece when it has heard anything more."""

    async def serve(listener: Listener) -> None:
        stream = await listener.accept()
        handshake = ServerHandshake(Side("test/1", bytes(16), private=True), session="s")
        while handshake.outcome is None:
            handshake.received(await stream.receive_into(handshake.buffer.writable()))
        await stream.send(handshake.data_to_send())
        await stream.receive_into(memoryview(bytearray(65_536)))
        await stream.send([answer])
        await read_to_end(stream)

    transport, address = transport_for(URL)
    async with transport.listen(address) as listener, trio.open_nursery() as nursery:
        nursery.start_soon(serve, listener)
        yield


@pytest.mark.parametrize("last", [Reply(1, 5), Fail(1, "internal", "", None), Goodbye("", ""), Ping(1), Close(99)])
async def test_an_item_that_does_not_fit_is_its_calls_fault_whatever_comes_with_it(last: Any) -> None:
    answer = encoded(Item(1, "not a number"), last)
    async with hostile_server(answer), rlm_wire.connect(URL) as peer:
        with pytest.raises(rlm_wire.CallError, match=r"item of rules\.numbers"):
            async with peer.open(Numbers()) as call:
                await anext(call)


@pytest.fixture
async def peer() -> AsyncIterator[rlm_wire.Peer]:
    async with rlm_wire.serve(URL, make_service()), rlm_wire.connect(URL) as peer:
        yield peer


class Unknown(rlm_wire.Request[None], tag="rules.unknown"):
    pass


class Wrong(rlm_wire.Request[int], tag="rules.echo"):
    number: str


async def test_a_method_that_is_not_there_and_params_that_do_not_fit_fail_their_call_only(peer: rlm_wire.Peer) -> None:
    """[R-6.1.1] [R-6.1.2]"""
    with pytest.raises(rlm_wire.CallError, match=r"rules\.unknown") as caught:
        await peer.call(Unknown())
    assert caught.value.code == "unimplemented"
    with pytest.raises(rlm_wire.CallError, match="number") as caught:
        await peer.call(Wrong("seven"))
    assert caught.value.code == "invalid_argument"
    assert await peer.call(Echo(7)) == 7


async def test_work_is_stopped_when_its_deadline_has_passed(autojump_clock: trio.testing.MockClock) -> None:
    """[R-6.6.6]"""
    async with rlm_wire.serve(URL, make_service()), rlm_wire.connect(URL) as peer:
        for timeout in (0, 3):
            with trio.fail_after(timeout + 1), pytest.raises(rlm_wire.CallError) as caught:
                await peer.call(Sleep(), timeout=timeout)
            assert caught.value.code == "deadline_exceeded"


async def test_a_handlers_bug_says_internal_and_its_method_only(
    peer: rlm_wire.Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """[R-9.1.3]"""
    with pytest.raises(rlm_wire.CallError) as caught:
        await peer.call(Break())
    assert caught.value.code == "internal"
    assert "hunter2" not in str(caught.value)
    assert "rules.break" in str(caught.value)
    assert "hunter2" in caplog.text


async def test_a_code_from_the_future_is_internal(peer: rlm_wire.Peer) -> None:
    """[R-9.1.1]"""
    with pytest.raises(rlm_wire.CallError, match="as asked") as caught:
        await peer.call(Break("from_the_future"))
    assert caught.value.code == "internal"
