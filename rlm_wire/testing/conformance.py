"""check_transport(): does a transport keep every promise of `rlm_wire.transports.base`?"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Final

import trio
import trio.testing

from rlm_wire.errors import TransportError
from rlm_wire.transports import Buffer, ByteStream, Listener, Transport

__all__ = ["check_transport"]

CHECK_TIMEOUT: Final = 30.0
"""Seconds for one check: a promise not kept often shows as a hang."""

MORE_THAN_FITS: Final = 64 * 1024 * 1024
"""No transport may hold this many bytes that nobody has read."""

PATTERN: Final = bytes(range(251)) * 4178
"""About a million bytes; their period is no power of two, so that lost and swapped pieces show."""

AsyncFunction = Callable[[], Awaitable[object]]
Connect = Callable[[], AbstractAsyncContextManager[tuple[ByteStream, ByteStream]]]


async def check_transport(
    transport: Transport,
    address: str,
    *,
    client_context: ssl.SSLContext | None = None,
    server_context: ssl.SSLContext | None = None,
) -> None:
    """Listen on `address` with `transport`, connect to it, and check all promises with either side in either role.

    The contexts go to `connect` and `listen`. Raises `AssertionError`, or what the transport raised where it should
    not, or `trio.TooSlowError` where it waited for ever, each with a note that names the promise; failures in
    concurrent parts come as an exception group. Cancellation: closes everything.
    """
    async with transport.listen(address, ssl_context=server_context) as listener:
        assert listener.urls, "a listener has at least one URL"
        connect = partial(_connected, transport, listener, client_context)
        with _promise("several connections at a time"):
            await several_connections(connect)
        async with connect() as (client, server):
            for check in CHECKS_THAT_LEAVE_THE_STREAM_WHOLE:
                for one, other, role in ((client, server, "client first"), (server, client, "server first")):
                    with _promise(f"{check.__name__}, {role}"):
                        await check(one, other)
        for check in CHECKS_THAT_END_THE_STREAM:
            with _promise(f"{check.__name__}, client first"):
                async with connect() as (client, server):
                    await check(client, server)
            with _promise(f"{check.__name__}, server first"):
                async with connect() as (client, server):
                    await check(server, client)


@contextmanager
def _promise(name: str) -> Iterator[None]:
    promise = name.replace("_", " ")
    try:
        with trio.fail_after(CHECK_TIMEOUT):
            yield
    except Exception as error:
        error.add_note(f"check_transport: {promise}")
        raise


@asynccontextmanager
async def _connected(
    transport: Transport, listener: Listener, context: ssl.SSLContext | None
) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """A client's stream and the accepted one, hands shaken."""
    address = listener.urls[0].partition(":")[2].removeprefix("//")
    async with transport.connect(address, ssl_context=context) as client:
        server = await listener.accept()
        try:
            await _together(client.handshake, server.handshake)
            await client.handshake()
            assert client.description, "a stream says where its other end is"
            assert server.description, "a stream says where its other end is"
            assert client.channel_binding == server.channel_binding, "both ends have the same channel binding"
            yield client, server
        finally:
            await _together(client.aclose, server.aclose)


async def _together(*functions: AsyncFunction) -> None:
    async with trio.open_nursery() as nursery:
        for function in functions:
            nursery.start_soon(function)


async def _receive(stream: ByteStream, size: int, at_once: int = 65536) -> bytes:
    """Exactly `size` bytes, or fewer if the stream ends."""
    received = bytearray(size)
    view, filled = memoryview(received), 0
    while filled < size:
        count = await stream.receive_into(view[filled : filled + at_once])
        assert 0 <= count <= at_once, f"receive_into returned {count} for a buffer of {at_once}"
        if not count:
            break
        filled += count
    return bytes(view[:filled])


async def _expect(stream: ByteStream, expected: bytes, at_once: int = 65536) -> None:
    received = await _receive(stream, len(expected), at_once)
    assert len(received) == len(expected), f"only {len(received)} of {len(expected)} bytes arrived"
    assert received == expected, "other bytes arrived than were sent"


async def _receive_one(stream: ByteStream) -> int:
    return await stream.receive_into(memoryview(bytearray(1)))


async def whole_data_arrives_both_ways(one: ByteStream, other: ByteStream) -> None:
    await one.send([b"there"])
    await _expect(other, b"there")
    await other.send([b"and", b" ", b"back"])
    await _expect(one, b"and back")


async def bytes_arrive_one_at_a_time(one: ByteStream, other: ByteStream) -> None:
    for position in range(200):
        await one.send([PATTERN[position : position + 1]])
    await _expect(other, PATTERN[:200], at_once=1)


async def vectors_of_any_shape_arrive_in_order(one: ByteStream, other: ByteStream) -> None:
    view = memoryview(PATTERN)
    pieces: list[Buffer] = [b"", bytearray(), *(view[at : at + 7] for at in range(0, 21_000, 7)), b""]
    pieces += [bytearray(PATTERN[21_000:50_000]), PATTERN[50_000:]]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send, pieces)
        await _expect(other, PATTERN)
    await one.send([])
    await one.send([b"", b"end"])
    await _expect(other, b"end")


async def a_sender_waits_for_a_reader(one: ByteStream, other: ByteStream) -> None:
    sent = trio.Event()

    async def send() -> None:
        await one.send([PATTERN] * (MORE_THAN_FITS // len(PATTERN)))
        sent.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not sent.is_set(), f"a send of {MORE_THAN_FITS} bytes returned although nobody reads"
        for _ in range(MORE_THAN_FITS // len(PATTERN)):
            await _expect(other, PATTERN, at_once=1_048_576)
    assert sent.is_set()


async def both_directions_flow_at_once(one: ByteStream, other: ByteStream) -> None:
    async with trio.open_nursery() as nursery:
        for stream in (one, other):
            nursery.start_soon(stream.send, [PATTERN] * 4)
            nursery.start_soon(_expect, stream, PATTERN * 4)


async def a_cancelled_receive_loses_nothing(one: ByteStream, other: ByteStream) -> None:
    async def receive_in(scope: trio.CancelScope) -> None:
        with scope:
            await _receive_one(other)

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive_in, scope)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
    await one.send([PATTERN[:1000]])
    received = b""
    for _ in range(10):
        buffer = bytearray(10)
        with trio.CancelScope() as already_cancelled:
            already_cancelled.cancel()
            count = await other.receive_into(memoryview(buffer))
            received += buffer[:count]
    await _expect(other, PATTERN[len(received) : 1000])
    assert received == PATTERN[: len(received)], "a cancelled receive lost bytes"


async def a_send_cut_short_makes_the_next_one_fail(one: ByteStream, other: ByteStream) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send, [bytes(MORE_THAN_FITS)])
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    try:
        await one.send([b"more"])
    except TransportError:
        return
    raise AssertionError("a send after one that was cancelled half-way must raise TransportError")


async def the_end_comes_after_all_data(one: ByteStream, other: ByteStream) -> None:
    """The closing side has unread bytes, as a server has that answers and closes while the client still talks."""
    await other.send([b"never read"])

    async def send_and_close() -> None:
        await one.send([PATTERN, PATTERN])
        await one.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_and_close)
        await _expect(other, PATTERN * 2)
        assert await _receive_one(other) == 0, "bytes arrived that nobody sent"
        assert await _receive_one(other) == 0, "the end of a stream does not go away"
        await other.aclose()


async def closing_wakes_both_sides(one: ByteStream, other: ByteStream) -> None:
    async def closed_under(use: AsyncFunction) -> None:
        try:
            await use()
        except trio.ClosedResourceError:
            return
        raise AssertionError("a task that waits on a stream when it is closed must get trio.ClosedResourceError")

    async def sees_the_end() -> None:
        try:
            while await other.receive_into(memoryview(bytearray(65536))):
                pass
        except TransportError:
            pass  # half a send is no orderly end on every transport
        await other.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(closed_under, partial(_receive_one, one))
        nursery.start_soon(closed_under, partial(one.send, [bytes(MORE_THAN_FITS)]))
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.start_soon(sees_the_end)
        await one.aclose()


async def a_closed_stream_refuses_use(one: ByteStream, other: ByteStream) -> None:
    await _together(one.aclose, other.aclose)
    await one.aclose()
    for use in (partial(_receive_one, one), partial(one.send, [b"x"])):
        try:
            await use()
        except trio.ClosedResourceError:
            continue
        raise AssertionError("a closed stream must raise trio.ClosedResourceError")


async def a_lost_peer_ends_the_sending(one: ByteStream, other: ByteStream) -> None:
    async def send_until_it_fails() -> None:
        for _ in range(MORE_THAN_FITS // len(PATTERN)):
            try:
                await one.send([PATTERN])
            except TransportError:
                return
        raise AssertionError("sending to a peer that has closed must raise TransportError sooner or later")

    await _together(other.aclose, send_until_it_fails)


async def a_second_user_of_a_direction_is_refused(one: ByteStream, other: ByteStream) -> None:
    async def refused(use: AsyncFunction) -> None:
        try:
            await use()
        except trio.BusyResourceError:
            return
        raise AssertionError("a second task in the same direction must get trio.BusyResourceError")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_receive_one, one)
        nursery.start_soon(one.send, [bytes(MORE_THAN_FITS)])
        await trio.testing.wait_all_tasks_blocked(0.01)
        await refused(partial(_receive_one, one))
        await refused(partial(one.send, [b"x"]))
        nursery.cancel_scope.cancel()


async def sending_without_waiting_keeps_the_order(one: ByteStream, other: ByteStream) -> None:
    total = PATTERN * 8
    async with trio.open_nursery() as nursery:
        at = 0
        for size in (1, 5, 100, 16_384, 70_000, len(total)):
            while at < size:
                piece = memoryview(total)[at:size]
                taken = one.send_nowait([piece[:3], piece[3:]])
                assert 0 <= taken <= len(piece), f"send_nowait returned {taken} for {len(piece)} bytes"
                at += taken
                if not taken:
                    break
            if at < size:
                nursery.start_soon(_expect, other, total)
                await one.send([memoryview(total)[at:]])
                return
        await _expect(other, total)


async def several_connections(connect: Connect) -> None:
    async with connect() as first, connect() as second, connect() as third:
        for number, (client, server) in enumerate((first, second, third)):
            await client.send([b"client %d" % number])
            await server.send([b"server %d" % number])
        for number, (client, server) in enumerate((first, second, third)):
            await _expect(server, b"client %d" % number)
            await _expect(client, b"server %d" % number)


CHECKS_THAT_LEAVE_THE_STREAM_WHOLE: Final = (
    whole_data_arrives_both_ways,
    bytes_arrive_one_at_a_time,
    vectors_of_any_shape_arrive_in_order,
    a_sender_waits_for_a_reader,
    both_directions_flow_at_once,
    a_cancelled_receive_loses_nothing,
    sending_without_waiting_keeps_the_order,
)
CHECKS_THAT_END_THE_STREAM: Final = (
    a_send_cut_short_makes_the_next_one_fail,
    the_end_comes_after_all_data,
    closing_wakes_both_sides,
    a_closed_stream_refuses_use,
    a_lost_peer_ends_the_sending,
    a_second_user_of_a_direction_is_refused,
)
