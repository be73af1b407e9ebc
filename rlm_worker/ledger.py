"""The replica of one agent's ledger: written as the harness sends it, read by the agent's cells."""

from __future__ import annotations

import os
from typing import IO, Final

import trio

from rlm_wire.errors import CallError
from rlm_wire.methods.ledger import LedgerChunk

CHUNK_LIMIT: Final = 1 << 20
"""Bytes that are written or read at once."""

PATIENCE: Final = 30.0
"""Seconds for what a cell is promised to arrive: the harness sent it off before the cell."""


class Replica:
    """Kept in a file without a name: no cell can find it, memory stays free, and it disappears with the worker.

    The file is made in `directory` (None: the system's) with the first chunk. `close` it.
    """

    def __init__(self, directory: str | None) -> None:
        self.size = 0
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._writing = trio.Lock()
        self._failure: CallError | None = None
        self._changed = trio.Event()
        self._expected = False

    def expect(self) -> None:
        """The harness will send a ledger."""
        self._expected = True

    async def append(self, chunk: LedgerChunk) -> None:
        """Take the next chunk; what is there already is left out.

        Raises CallError: `failed_precondition` if something is missing before it, `invalid_argument` if it is too
        large, `resource_exhausted` if it cannot be written. Cancellation: the chunk is in the replica or it is not.
        """
        async with self._writing:
            if len(chunk.data) > CHUNK_LIMIT:
                raise CallError("invalid_argument", f"a chunk of the ledger has at most {CHUNK_LIMIT} bytes")
            if not 0 <= chunk.start <= self.size:
                raise CallError("failed_precondition", f"the replica has {self.size} bytes: continue from there")
            data = chunk.data[self.size - chunk.start :]
            self._failure = None
            try:
                await trio.to_thread.run_sync(self._write, data, self.size)
            except OSError as error:
                where = self._directory or "the temporary directory"
                self._failure = CallError(
                    "resource_exhausted", f"no room for the ledger in {where}: {error.strerror}", retryable=True
                )
                raise self._failure from error
            else:
                self.size += len(data)
            finally:
                self._changed.set()
                self._changed = trio.Event()

    async def read(self, start: int, size: int | None) -> LedgerChunk:
        """What `ReadLedger` answers. Raises CallError. Cancellation: harmless."""
        if size is not None:
            await self._wait_for(size)
        elif not self._expected:
            raise CallError("unimplemented", "this harness shares no ledger")
        count = min(self.size - start, CHUNK_LIMIT)
        if start < 0 or count <= 0:
            return LedgerChunk(self.size, b"")
        assert self._file is not None
        return LedgerChunk(start, await trio.to_thread.run_sync(os.pread, self._file.fileno(), count, start))

    def close(self) -> None:
        """Give the file up; what waits for more of it has been cancelled."""
        if self._file is not None:
            self._file.close()

    async def _wait_for(self, size: int) -> None:
        with trio.move_on_after(PATIENCE):
            while self.size < size:
                if self._failure is not None:
                    raise self._failure
                await self._changed.wait()
            return
        raise CallError(
            "unavailable", f"the ledger has {size} bytes, and only {self.size} of them have arrived", retryable=True
        )

    def _write(self, data: bytes, position: int) -> None:
        if self._file is None:
            from tempfile import TemporaryFile  # slow to import

            self._file = TemporaryFile(buffering=0, dir=self._directory)  # noqa: SIM115  closed by close
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file.fileno(), rest, position)
            rest, position = rest[written:], position + written
