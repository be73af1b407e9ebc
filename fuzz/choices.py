"""Input bytes read as choices. Pure Python, so that an input means the same with and without a fuzzer.

One byte makes one small choice, so that a fuzzer's byte mutation changes one thing. Past the end all bytes are zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Final, TypeVar

T = TypeVar("T")

_EDGES: Final = (
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    1024,
    65_536,
    66_560,
    2**31,
    2**32 - 1,
    2**53 - 1,
    2**53,
    2**63,
    2**64 - 1,
)
_LENGTHS: Final = (300, 4_000, 16_385, 49_153, 65_000, 70_000, 140_000)
_CHUNKS: Final = (1, 2, 3, 4, 5, 9, 64, 1_000, 4_096, 30_000)
_SMALL_CHUNKS: Final = 1_000

WHOLE: Final = 255
"""The seed of `chunk_sizes` for as much at once as there is."""


class Choices:
    """Reads `data` from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return max(len(self._data) - self._at, 0)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def pick(self, options: Sequence[T]) -> T:
        return options[self.byte() % len(options)]

    def flag(self) -> bool:
        return self.byte() & 1 == 1

    def number(self) -> int:
        """Mostly small; sometimes at an edge, or negative."""
        byte = self.byte()
        if byte < 200:
            return byte
        if byte < 240:
            return _EDGES[byte % len(_EDGES)]
        return -1 if byte == 240 else int.from_bytes(self.take(3), "big")

    def take(self, count: int) -> bytes:
        """The next `count` bytes, fewer at the end."""
        self._at += count
        return self._data[self._at - count : self._at]

    def blob(self) -> bytes:
        """Some bytes of the input; sometimes many bytes, made of few, to pass the thresholds of sizes."""
        byte = self.byte()
        if byte < 224:
            return self.take(byte % 48)
        return bytes((self.byte(),)) * _LENGTHS[byte % len(_LENGTHS)]

    def text(self) -> str:
        return self.blob().decode("utf-8", "replace")

    def rest(self) -> bytes:
        return self.take(self.left)


def chunk_sizes(seed: int) -> Iterator[int]:
    """Sizes in which a stream arrives, without end: 0 is byte by byte, 255 whole, others mix small and large.

    After many chunks they get larger: a long stream byte by byte only costs time.
    """
    if seed == 0:
        pattern = [1]
    elif seed == WHOLE:
        pattern = [1 << 30]
    else:
        pattern = [_CHUNKS[(seed * step + step * step) % len(_CHUNKS)] for step in range(1, 8)]
    yield from islice(cycle(pattern), _SMALL_CHUNKS)
    yield from cycle(size * 256 for size in pattern)
