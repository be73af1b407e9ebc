"""The replica of a ledger: bytes in order whatever the chunks, and clear words when there are none."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from rlm_wire.errors import CallError
from rlm_wire.methods.ledger import LedgerChunk
from rlm_worker.ledger import CHUNK_LIMIT, PATIENCE, Replica

TEXT = "aé漢😀\n".encode() * 5


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    replica = Replica(str(tmp_path))
    yield replica
    replica.close()
    assert list(tmp_path.iterdir()) == []


async def read_all(replica: Replica, start: int, size: int | None = None) -> bytes:
    data = b""
    while chunk := (await replica.read(start + len(data), size)).data:
        data += chunk
    return data


async def refused(replica: Replica, start: int, data: bytes) -> str:
    with pytest.raises(CallError) as caught:
        await replica.append(LedgerChunk(start, data))
    return caught.value.code


async def test_b49_chunks_of_any_size_make_the_same_bytes_read_from_anywhere(replica: Replica) -> None:
    replica.expect()
    position = 0
    while position < len(TEXT):
        size = position % 7 + 1
        again = min(position, size % 3)  # what was sent before may come again
        await replica.append(LedgerChunk(position - again, TEXT[position - again : position + size]))
        position += size
    assert replica.size == len(TEXT)
    for start in range(len(TEXT) + 1):
        assert await read_all(replica, start) == TEXT[start:]


async def test_large_ledgers_are_read_in_pieces(replica: Replica) -> None:
    replica.expect()
    data = bytes(range(256)) * (CHUNK_LIMIT // 256)
    for index in range(3):
        await replica.append(LedgerChunk(index * len(data), data))
    assert len((await replica.read(5, None)).data) == CHUNK_LIMIT
    assert await read_all(replica, 0) == data * 3


async def test_gaps_and_oversized_chunks_are_refused_and_change_nothing(replica: Replica) -> None:
    await replica.append(LedgerChunk(0, b"abc"))
    assert await refused(replica, 4, b"e") == "failed_precondition"
    assert await refused(replica, -1, b"abcd") == "failed_precondition"
    assert await refused(replica, 3, b"x" * (CHUNK_LIMIT + 1)) == "invalid_argument"
    assert await read_all(replica, 0, 3) == b"abc"


async def test_b68_a_full_disk_is_said_to_writer_and_reader_and_recovered_from(replica: Replica) -> None:
    await replica.append(LedgerChunk(0, b"x" * 1000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
    try:
        assert await refused(replica, 1000, b"y" * 1000) == "resource_exhausted"
        with pytest.raises(CallError, match="no room for the ledger"):
            await replica.read(0, 2000)
        assert await read_all(replica, 0, 1000) == b"x" * 1000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await replica.append(LedgerChunk(1000, b"y" * 1000))
    assert await read_all(replica, 999, 2000) == b"x" + b"y" * 1000


async def test_a_reader_waits_for_what_it_was_promised(replica: Replica) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replica.append, LedgerChunk(0, b"ab"))
        assert (await replica.read(0, 2)).data == b"ab"


async def test_a_reader_does_not_wait_for_ever(replica: Replica, mock_clock: MockClock) -> None:
    """The clock starts to jump once the chunk is written: a thread does that, and virtual time must not run past it."""
    await replica.append(LedgerChunk(0, b"ab"))
    mock_clock.autojump_threshold = 0
    start = trio.current_time()
    with pytest.raises(CallError, match="only 2 of them") as caught:
        await replica.read(0, 3)
    assert (caught.value.code, caught.value.retryable) == ("unavailable", True)
    assert trio.current_time() - start == PATIENCE


async def test_without_a_ledger_that_is_said(replica: Replica) -> None:
    with pytest.raises(CallError, match="shares no ledger"):
        await replica.read(0, None)
