"""Output kept exactly in bounded memory, and shown live to receivers of every speed."""

from __future__ import annotations

import os

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_wire.methods.tools import OutputChunk
from rlm_worker.processes import Capture, open_capture, output_pipe
from rlm_worker.processes.capture import CHUNK, KEPT, LIVE_WAITING

PIECES = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=10).map(str.encode),
    st.sampled_from([b"\n", b"\xe4\xb8", b"\x96", b"\xf0\x9f", b"\x98\x80", b"\xff", b"\xed\xa0\x80"]),
)


@given(st.lists(PIECES, max_size=30))
def test_b20_totals_are_those_of_the_whole_stream_however_it_is_cut(pieces: list[bytes]) -> None:
    capture = Capture()
    for piece in pieces:
        capture.feed(piece)
    whole = b"".join(pieces)
    output = capture.output()
    assert (output.head + output.tail, output.bytes, output.omitted) == (whole, len(whole), 0)
    assert output.text == whole.decode("utf-8", "replace")
    assert (output.chars, output.lines) == (len(output.text), whole.count(b"\n"))


@settings(max_examples=20, deadline=None)
@given(st.integers(2 * KEPT - 3, 3 * KEPT), st.integers(1000, 200_000))
def test_beginning_and_end_are_kept_and_the_gap_is_exact(size: int, piece: int) -> None:
    whole = (b"0123456789abcde\n" * (size // 16 + 1))[:size]
    capture = Capture()
    for start in range(0, size, piece):
        capture.feed(whole[start : start + piece])
    output = capture.output()
    assert output.head == whole[:KEPT]
    assert output.tail == whole[max(KEPT, size - KEPT) :]
    assert output.omitted == size - len(output.head) - len(output.tail)
    assert (output.chars, output.lines) == (size, whole.count(b"\n"))


def test_a_character_cut_by_the_gap_is_not_shown_broken() -> None:
    capture = Capture()
    for _ in range(4):
        capture.feed("世".encode() * (KEPT // 3))
    output = capture.output()
    assert output.omitted > 0
    assert "\ufffd" not in output.text
    assert f"{output.omitted} bytes omitted" in output.text


async def test_drain_takes_what_is_there_and_never_waits_for_more() -> None:
    capture = Capture()
    with output_pipe() as pipe:
        capture.drain(pipe.read)
        os.write(pipe.write, b"before")
        capture.drain(pipe.read)
        os.write(pipe.write, b"after")
    assert capture.output().head == b"before"


async def test_b20_a_character_written_in_three_pieces_stays_whole() -> None:
    shown: list[bytes] = []
    seen = trio.Event()

    async def sink(chunk: OutputChunk) -> None:
        shown.append(chunk.data)
        seen.set()

    with output_pipe() as pipe:
        async with open_capture(sink) as capture, trio.open_nursery() as nursery:
            nursery.start_soon(capture.read, pipe.read)
            for byte in "世".encode():
                os.write(pipe.write, bytes([byte]))
                await seen.wait()
                seen = trio.Event()
            pipe.close_write()
    assert b"".join(shown).decode() == capture.output().text == "世"
    assert capture.output().chars == 1


async def test_live_output_is_gathered_for_a_moment(autojump_clock: trio.testing.MockClock) -> None:
    shown: list[tuple[float, bytes]] = []

    async def sink(chunk: OutputChunk) -> None:
        shown.append((trio.current_time(), chunk.data))

    async with open_capture(sink) as capture:
        start = trio.current_time()
        for _ in range(5):
            capture.feed(b"a")
            await trio.sleep(0.02)
        await trio.sleep(1)
        capture.feed(b"last")
    assert b"".join(data for _, data in shown) == b"aaaaalast"
    assert [data for _, data in shown][-1] == b"last"
    assert shown[0][0] - start <= 0.05
    assert len(shown) == 3


async def test_a_receiver_that_keeps_up_gets_everything(autojump_clock: trio.testing.MockClock) -> None:
    received = bytearray()

    async def sink(chunk: OutputChunk) -> None:
        assert len(chunk.data) <= CHUNK
        assert chunk.skipped == 0
        received.extend(chunk.data)

    with output_pipe() as pipe:
        async with open_capture(sink) as capture, trio.open_nursery() as nursery:
            nursery.start_soon(capture.read, pipe.read)
            data = memoryview(os.urandom(5 * LIVE_WAITING))
            whole = bytes(data)
            os.set_blocking(pipe.write, False)
            while data:
                await trio.lowlevel.wait_writable(pipe.write)
                data = data[os.write(pipe.write, data[:65536]) :]
            pipe.close_write()
    assert bytes(received) == whole


async def test_b25_a_receiver_that_never_takes_anything_holds_nothing_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def sink(chunk: OutputChunk) -> None:
        await trio.sleep_forever()

    with output_pipe() as pipe:
        start = trio.current_time()
        async with open_capture(sink) as capture, trio.open_nursery() as nursery:
            nursery.start_soon(capture.read, pipe.read)
            os.set_blocking(pipe.write, False)
            for _ in range(4 * LIVE_WAITING // 4096):
                await trio.lowlevel.wait_writable(pipe.write)
                os.write(pipe.write, bytes(4096))
            pipe.close_write()
        assert trio.current_time() - start < 5
    assert capture.output().bytes == 4 * LIVE_WAITING


async def test_a_slow_receiver_sees_the_newest_and_is_told_what_it_missed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks: list[OutputChunk] = []

    async def sink(chunk: OutputChunk) -> None:
        chunks.append(chunk)
        await trio.sleep(0.9 if len(chunks) == 1 else 0)

    async with open_capture(sink) as capture:
        capture.feed(b"first")
        await trio.sleep(0.1)
        for number in range(40):
            capture.feed(bytes([number]) * CHUNK)
    assert chunks[0].data == b"first"
    assert chunks[1].skipped == 40 * CHUNK - LIVE_WAITING
    assert chunks[-1].data == bytes([39]) * CHUNK
    assert sum(len(chunk.data) + chunk.skipped for chunk in chunks) == capture.output().bytes


async def test_an_error_of_the_receiver_is_raised_as_it_is() -> None:
    async def sink(chunk: OutputChunk) -> None:
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        async with open_capture(sink) as capture:
            capture.feed(b"x")
