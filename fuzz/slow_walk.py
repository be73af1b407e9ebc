"""Nesting measured the slow and plain way, value by value: the judge of the quick checks in `rlm_wire.frames.nesting`.

Each returns TOO_DEEP, FINE (a whole document, nothing behind it) or MALFORMED (before it became too deep).
"""

from __future__ import annotations

import enum
from typing import Final

from rlm_wire.frames.limits import NESTING_LIMIT


class Verdict(enum.Enum):
    FINE = enum.auto()
    TOO_DEEP = enum.auto()
    MALFORMED = enum.auto()


class _Malformed(Exception):
    pass


class _TooDeep(Exception):
    pass


# First byte → (bytes of the length or count behind it, bytes besides it).
_STRINGS: Final = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
_FIXED: Final = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4,
    0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip


def walk_msgpack(body: bytes) -> Verdict:
    try:
        end = _after_value(body, 0, 0)
    except _Malformed:
        return Verdict.MALFORMED
    except _TooDeep:
        return Verdict.TOO_DEEP
    return Verdict.FINE if end == len(body) else Verdict.MALFORMED


def _after_value(body: bytes, at: int, depth: int) -> int:
    if at >= len(body):
        raise _Malformed
    first = body[at]
    at += 1
    if first < 0x80 or first >= 0xE0:
        return at
    if 0xA0 <= first < 0xC0:
        return _skip(body, at, first & 0x1F)
    if first in _FIXED:
        return _skip(body, at, _FIXED[first])
    if first in _STRINGS:
        width, more = _STRINGS[first]
        return _skip(body, at, width + more + _number(body, at, width))
    return _after_container(body, at, first, depth + 1)


def _after_container(body: bytes, at: int, first: int, depth: int) -> int:
    if first < 0xA0:
        count = (first & 0x0F) * (2 if first < 0x90 else 1)
    elif 0xDC <= first <= 0xDF:
        width = 2 if first in (0xDC, 0xDE) else 4
        count = _number(body, at, width) * (2 if first >= 0xDE else 1)
        at += width
    else:
        raise _Malformed
    if depth > NESTING_LIMIT:
        raise _TooDeep
    for _ in range(count):
        at = _after_value(body, at, depth)
    return at


def _skip(body: bytes, at: int, count: int) -> int:
    if at + count > len(body):
        raise _Malformed
    return at + count


def _number(body: bytes, at: int, width: int) -> int:
    return int.from_bytes(body[at : _skip(body, at, width)], "big")


def walk_json(body: bytes) -> Verdict:
    """Looks at brackets and strings only: what else is malformed counts as fine, and the decoder must find it."""
    depth = 0
    in_string = escaped = ended = False
    for byte in body:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif ended and byte not in b" \t\r\n":
            return Verdict.MALFORMED
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            if depth > NESTING_LIMIT:
                return Verdict.TOO_DEEP
        elif byte in b"]}":
            depth -= 1
            if depth < 0:
                return Verdict.MALFORMED
            ended = depth == 0
    return Verdict.MALFORMED if in_string or depth else Verdict.FINE


def depth_of(value: object) -> int:
    """Containers inside containers of a decoded value, the outermost included."""
    deepest, level = 0, [value]
    while level:
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += [*each.keys(), *each.values()]
            elif isinstance(each, list | tuple):
                inner += each
        if any(isinstance(each, dict | list | tuple) for each in level):
            deepest += 1
        level = inner
    return deepest
