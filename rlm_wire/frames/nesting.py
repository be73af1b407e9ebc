"""How deeply a body is nested, found without recursion: a decoder must never meet a nesting bomb (spec §8.1).

msgspec recurses in C: at best a bomb becomes RecursionError, with a raised limit or a small stack the process dies.
Both checks first try to prove cheaply that the body cannot be too deep, and look at it closely only if they must.
"""

from __future__ import annotations

import re
from typing import Final

from rlm_wire.frames.limits import NESTING_LIMIT

TOO_DEEP: Final = f"nested deeper than {NESTING_LIMIT} levels"

# Every byte but the container headers (fixmap, fixarray, array16/32, map16/32). If no more bytes than there may be
# levels are left without these, all is well; more prove nothing, strings may hold them. Pays for small bodies only.
_NO_CONTAINERS: Final = bytes([*range(0x80), *range(0xA0, 0xDC), *range(0xE0, 0x100)])

# Values of one byte that are no containers, many of them at once. An empty container is one: it counts as a level.
_LEAVES: Final = re.compile(rb"[\x00-\x7f\xa0\xc0\xc2\xc3\xe0-\xff]+")
_RUN_WORTH_MATCHING: Final = 16
_SMALL: Final = 1024

# Bytes of a value, by its header, where the header alone tells: numbers, fixext, short strings. Else 0.
_SIZES: Final = [1] * 0x80 + [0] * 0x80
_SIZES[0xA0:0xC0] = range(1, 0x21)
_SIZES[0xC0:0xC4] = [1] * 4
_SIZES[0xCA:0xD9] = [5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18]
_SIZES[0xE0:0x100] = [1] * 0x20

# Width of the length behind the header, and bytes besides the announced ones: bin, ext (a type byte), str.
_SIZED: Final = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip

# Width of the count behind the header, and values for each that is counted.
_CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def is_msgpack_nested_too_deeply(body: bytes | bytearray | memoryview) -> bool:
    """True if containers in `body` are nested beyond NESTING_LIMIT. What is malformed is left to the decoder."""
    size = len(body)
    if size <= NESTING_LIMIT:
        return False
    if size <= _SMALL and len(bytes(body).translate(None, _NO_CONTAINERS)) <= NESTING_LIMIT:
        return False
    position, end = 0, size
    left = 1  # values still to come in the innermost open container
    outer: list[int] = []  # and in those around it
    while position < end:
        if not left:
            if not outer:
                return False
            left = outer.pop()
            continue
        header = body[position]
        size = _SIZES[header]
        if size:
            if size == 1 and left > _RUN_WORTH_MATCHING and (run := _LEAVES.match(body, position, position + left)):
                size = run.end() - position
                left -= size - 1
            position += size
            left -= 1
            continue
        left -= 1
        position += 1
        if header in _SIZED:
            width, more = _SIZED[header]
            position += width + more + int.from_bytes(body[position : position + width], "big")
            continue
        outer.append(left)
        if header in _CONTAINERS:
            width, values = _CONTAINERS[header]
            left = int.from_bytes(body[position : position + width], "big") * values
            position += width
        else:
            left = (header & 0x0F) * (2 if header < 0x90 else 1)
        if len(outer) > NESTING_LIMIT:
            return True
    return False


# A string without its closing quote is taken to the end: to fail and try again at each quote in it would be quadratic.
_JSON_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)


def is_json_nested_too_deeply(body: bytes | bytearray | memoryview) -> bool:
    """The same for JSON text; brackets inside strings do not count."""
    if len(body) <= NESTING_LIMIT:
        return False
    text = bytes(body)
    if text.count(b"[") + text.count(b"{") <= NESTING_LIMIT:
        return False
    depth = 0
    for token in _JSON_TOKEN.finditer(text):
        first = token[0][0]
        if first in b"[{":
            depth += 1
            if depth > NESTING_LIMIT:
                return True
        elif first != 0x22:
            depth -= 1
    return False
