"""How deeply a body is nested, found without recursion: a decoder must never meet a nesting bomb (spec §8.1).

msgspec recurses in C: at best a bomb becomes RecursionError, with a raised limit or a small stack the process dies.
Both checks first try to prove cheaply that the body cannot be too deep, and look at it closely only if they must.
"""

from __future__ import annotations

import re
from typing import Final

from rlm_wire.frames.limits import NESTING_LIMIT

TOO_DEEP: Final = f"nested deeper than {NESTING_LIMIT} levels"

# Headers of msgpack containers: fixmap, fixarray, array16/32, map16/32. A level of nesting takes at least one.
_NOT_A_CONTAINER: Final = bytes(b for b in range(256) if not (0x80 <= b <= 0x9F or 0xDC <= b <= 0xDF))

# Values of one byte that contain nothing: skipped many at a time. Empty containers are among them.
_LEAVES: Final = re.compile(rb"[\x00-\x7f\x80\x90\xa0\xc0\xc2\xc3\xe0-\xff]+")

# Bytes behind the header of values with a fixed size: floats, integers, fixext.
_FIXED: Final = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip

# Width of the length behind the header, and bytes besides the announced ones: bin, ext (a type byte), str.
_SIZED: Final = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip

_CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}

_STEPS_BEFORE_COUNTING: Final = 32


def is_msgpack_nested_too_deeply(body: bytes | bytearray | memoryview) -> bool:
    """True if containers in `body` are nested beyond NESTING_LIMIT. What is malformed is left to the decoder."""
    if len(body) <= NESTING_LIMIT:
        return False
    if len(body) <= 1024 and len(bytes(body).translate(None, _NOT_A_CONTAINER)) <= NESTING_LIMIT:
        return False
    return _walk_msgpack(body)


def _walk_msgpack(body: bytes | bytearray | memoryview) -> bool:
    """Walk the values with a stack of how many are left in each open container."""
    position, end = 0, len(body)
    left: list[int] = [1]
    steps = 0
    while left and position < end:
        steps += 1
        if steps == _STEPS_BEFORE_COUNTING and len(bytes(body).translate(None, _NOT_A_CONTAINER)) <= NESTING_LIMIT:
            return False
        if left[-1] == 0:
            left.pop()
            continue
        if run := _LEAVES.match(body, position, min(end, position + left[-1])):
            left[-1] -= run.end() - position
            position = run.end()
            continue
        header = body[position]
        position += 1
        left[-1] -= 1
        if 0x80 <= header <= 0x9F:
            left.append((header & 0x0F) * (2 if header < 0x90 else 1))
        elif 0xA0 <= header <= 0xBF:
            position += header & 0x1F
        elif header in _SIZED:
            width, more = _SIZED[header]
            position += width + more + int.from_bytes(body[position : position + width], "big")
        elif header in _CONTAINERS:
            width, values = _CONTAINERS[header]
            left.append(int.from_bytes(body[position : position + width], "big") * values)
            position += width
        else:
            position += _FIXED.get(header, 0)
        if len(left) > NESTING_LIMIT + 1:
            return True
    return False


_JSON_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


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
