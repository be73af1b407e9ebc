"""Frames that are nearly right, made from choices: a fuzzer that had to invent them byte by byte would never get deep.

`frame_body` makes one encoded frame, `value` a small value, `damaged` spoils bytes now and then.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fuzz.choices import Choices
from rlm_wire.errors import CODES
from rlm_wire.frames.schema import Ack, Call, Cancel, Close, Credit, Fail, Goodbye, Item, Part, Ping, Pong, Reply

ENCODE: Final = {"msgpack": msgspec.msgpack.encode, "json": msgspec.json.encode}
_ORDINARY: Final = (Call, Call, Call, Item, Item, Item, Close, Reply, Fail, Cancel, Credit, Ping, Pong)
_RARE: Final = (Ack, Part, Goodbye)
_METHODS: Final = ("calc.add", "calc.tail", "", "x" * 300)
_CONTAINERS_OF_TWO: Final = (b"\x92", b"\x81", b"\xdc\0\2", b"\xdd\0\0\0\2", b"\xde\0\1", b"\xdf\0\0\0\1")
_FIXED: Final = tuple(
    bytes((header,)) + b"\x91" * (size - 1)
    for header, size in zip(range(0xCA, 0xD9), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), strict=True)
)
"""Numbers and extensions of a fixed size, without their last byte."""
_DEPTHS: Final = (1, 2, 3, 60, 62, 63, 64, 65, 70, 300)


def value(choices: Choices) -> Any:
    """A value of any shape: flat, large, or about as deep as is allowed."""
    match choices.byte() % 10:
        case 0:
            return choices.number() & (2**64 - 1)
        case 1:
            return choices.text()
        case 2:
            return choices.blob()
        case 3:
            return None
        case 4:
            return {choices.text()[:20]: choices.number() & 0xFF, "x": choices.flag()}
        case 5:
            return [choices.byte() for _ in range(choices.byte() % 40)]
        case 6:
            return choices.byte() / 7
        case 7:
            inner: Any = choices.pick(([], {}, 1, "[[[[", b"\x91" * 30))
            for _ in range(choices.pick(_DEPTHS)):
                inner = [inner] if choices.byte() % 3 else {"k": inner}
            return inner
        case 8:
            return [[]] * choices.byte()
        case _:
            return {"x": 1, "y": 2}


def call_id(choices: Choices, parity: int) -> int:
    """Small, so that it hits calls that exist, and of that parity; sometimes anything."""
    byte = choices.byte()
    if byte < 224:
        return byte % 8 * 2 + (parity or 2)
    return byte % 16 if byte < 248 else choices.number()


def frame(choices: Choices, peer: int = 0) -> Any:
    """One frame of any kind from the side whose calls have parity `peer`; what ends a session at once is rare."""
    kind = choices.pick(_ORDINARY if choices.byte() < 240 else _RARE)
    if kind is Call:
        scope = choices.text()[:40] if choices.flag() else None
        deadline = choices.number() / 4 if choices.flag() else None
        method = choices.pick(_METHODS)
        return Call(call_id(choices, peer), method, value(choices), scope, deadline, choices.byte() % 4)
    if kind is Ping or kind is Pong or kind is Ack:
        return kind(choices.number())
    if kind is Goodbye:
        return Goodbye(choices.pick(("", *sorted(CODES))), choices.text())
    if kind is Cancel:
        return Cancel(call_id(choices, peer), choices.text())
    if kind is Reply:
        return Reply(call_id(choices, 1 - peer), value(choices))
    if kind is Fail:
        code = choices.pick((*sorted(CODES), "no such code"))
        return Fail(call_id(choices, 1 - peer), code, choices.text(), value(choices), choices.flag())
    any_call = call_id(choices, choices.byte() & 1)
    if kind is Item:
        return Item(any_call, value(choices))
    if kind is Credit:
        return Credit(any_call, choices.number())
    return Part(any_call, choices.flag(), memoryview(choices.blob())) if kind is Part else Close(any_call)


def frame_body(choices: Choices, codec: str, peer: int = 0) -> bytes:
    """One encoded frame, as `frame` makes them."""
    return ENCODE[codec](frame(choices, peer))


def nested_msgpack(choices: Choices) -> bytes:
    """A value inside many containers, each with a sibling before it whose bytes look like containers."""
    body = bytearray()
    for _ in range(choices.pick(_DEPTHS)):
        body += choices.pick(_CONTAINERS_OF_TWO) + _sibling(choices)
    return bytes(body) + choices.pick((b"\xc0", b"\x90", b"\x80", b"\xc1", b""))


def _sibling(choices: Choices) -> bytes:
    byte = choices.byte()
    content = b"\x91" * (byte % 7)
    match byte % 11:
        case 0:
            return bytes((0xC4, len(content))) + content
        case 1:
            return b"\xc5\0" + bytes((len(content),)) + content
        case 2:
            return b"\xc6\0\0\0" + bytes((len(content),)) + content
        case 3:
            return bytes((0xC7, len(content), 0x92)) + content
        case 4:
            return b"\xc8\0" + bytes((len(content), 0x92)) + content
        case 5:
            return b"\xc9\0\0\0" + bytes((len(content), 0x92)) + content
        case 6:
            return bytes((0xD9, len(content))) + b"[" * len(content)
        case 7:
            return bytes((0xA0 | len(content),)) + b"{" * len(content)
        case 8:
            return choices.pick(_FIXED) + bytes(1)
        case 9:
            return b"\xdc\0\x14" + bytes(20)
        case _:
            return bytes((byte & 0x7F,))


def damaged(body: bytes, choices: Choices) -> bytes:
    """`body`, in one of four cases changed in a byte, cut short, or longer."""
    how = choices.byte()
    if how < 192 or not body:
        return body
    at = choices.byte() * 31 % len(body)
    if how < 216:
        return body[:at] + bytes((choices.byte(),)) + body[at + 1 :]
    return body[:at] if how < 236 else body[:at] + choices.take(3) + body[at:]
