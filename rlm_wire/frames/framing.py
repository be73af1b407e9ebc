"""Bytes ↔ bodies: the preface, the length before each body, and the buffer that collects them. Spec §2.

The buffer is filled in place (`writable`, `wrote`) and hands out views into itself, valid until the next `writable`;
so a small frame is never copied before it is decoded. It starts small and grows to what the peer's frames need, never
beyond one frame of the limit: a length is checked before a byte of its body is stored.
"""

from __future__ import annotations

import struct
from typing import Final

from rlm_wire.errors import RemoteProtocolError
from rlm_wire.frames.limits import BANNER_LIMIT, HEADER_SIZE, MESSAGE_TEXT_LIMIT, PREFACE

_unpack_length: Final = struct.Struct(">I").unpack_from

_FIRST_CAPACITY: Final = 4 * 1024
_HTTP_WORDS: Final = {b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"PRI", b"CONNECT", b"HTTP/1.1", b"HTTP/1.0"}


class ReceiveBuffer:
    """Collects received bytes; `frame_limit` bounds the bodies it accepts, and may be changed between frames."""

    def __init__(self, frame_limit: int) -> None:
        self.frame_limit = frame_limit
        self._bytes = bytearray(_FIRST_CAPACITY)
        self._view = memoryview(self._bytes)
        self._start = 0
        self._end = 0
        self._filled = False

    def __len__(self) -> int:
        """Bytes received and not yet taken."""
        return self._end - self._start

    def writable(self) -> memoryview:
        """Free space to receive into, at least 1 byte; ends the validity of every view handed out before."""
        size = self._end - self._start
        capacity = len(self._bytes)
        largest = self.frame_limit + HEADER_SIZE
        wanted = capacity
        if size >= HEADER_SIZE:
            wanted = max(wanted, min(self._next_length() + HEADER_SIZE, largest))
        if self._filled:
            wanted = max(wanted, min(capacity * 2, largest))
        if wanted > capacity:
            larger = bytearray(wanted)
            larger[:size] = self._view[self._start : self._end]
            self._bytes, self._view = larger, memoryview(larger)
            self._start, self._end = 0, size
        elif self._start and (size == 0 or capacity - self._end < capacity // 2):
            self._view[:size] = self._view[self._start : self._end]
            self._start, self._end = 0, size
        self._filled = False
        return self._view[self._end :]

    def wrote(self, count: int) -> None:
        """Take note that `count` bytes were received into `writable()`."""
        self._end += count
        self._filled = self._end == len(self._bytes)

    def next_body_untrusted(self) -> memoryview | None:
        """The next whole body, or None if it is not here yet. Raises RemoteProtocolError for a forbidden length."""
        start = self._start
        if self._end - start < HEADER_SIZE:
            return None
        length = self._next_length()
        if not 0 < length <= self.frame_limit:
            raise RemoteProtocolError(
                f"frame of {length} bytes refused: the limit is {self.frame_limit}"
                if length
                else "frame of 0 bytes refused",
                code="resource_exhausted" if length else "invalid_argument",
            )
        end = start + HEADER_SIZE + length
        if end > self._end:
            return None
        self._start = end
        return self._view[start + HEADER_SIZE : end]

    def _next_length(self) -> int:
        length: int = _unpack_length(self._view, self._start)[0]
        return length

    def peek(self) -> bytes:
        """A copy of what was received and not taken, for messages about strangers."""
        return bytes(self._view[self._start : self._end])

    def skip(self, count: int) -> None:
        """Drop the next `count` bytes."""
        self._start += count


class Preface:
    """Finds the 8 bytes that each side sends first; what came before them, if that is allowed, is kept in `banner`."""

    def __init__(self, *, skip_banner: bool) -> None:
        self.banner = b""
        self.found = False
        self._skip_banner = skip_banner

    def look_untrusted(self, buffer: ReceiveBuffer) -> bool:
        """Take the preface from `buffer`; False if more bytes are needed, RemoteProtocolError if it is not there."""
        seen = buffer.peek()
        if self._skip_banner:
            at = seen.find(PREFACE)
            self.found = at >= 0
            before = at if self.found else max(len(seen) - len(PREFACE) + 1, 0)  # the preface may be half here
            if what := mangled(self.banner[-len(PREFACE) :] + seen[: before + len(PREFACE)]):
                raise RemoteProtocolError(what)
            self.banner += seen[:before]
            buffer.skip(before)
            if len(self.banner) > BANNER_LIMIT:
                raise RemoteProtocolError(f"no preface in {BANNER_LIMIT} bytes; they begin {show(self.banner)}")
        elif seen[: len(PREFACE)] != PREFACE[: len(seen)]:
            raise RemoteProtocolError(mangled(seen) or f"this is not rlm-wire: {guess(seen)}")
        else:
            self.found = len(seen) >= len(PREFACE)
        if self.found:
            buffer.skip(len(PREFACE))
        return self.found


def show(data: bytes, limit: int = 64) -> str:
    """Bytes of a stranger, safe and short enough for a message."""
    return repr(bytes(data[:limit])) + ("..." if len(data) > limit else "")


_UNREADABLE: Final = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def readable(text: str) -> str:
    """A peer's human text, fit for a person's terminal: no control characters, and not longer than ours may be."""
    return text[:MESSAGE_TEXT_LIMIT].translate(_UNREADABLE)


def guess(seen: bytes) -> str:
    """What a peer that does not speak the protocol seems to be."""
    if seen[:1] == b"\x16" and seen[1:2] in (b"\x03", b""):
        return "the peer speaks TLS; use a tls:// address"
    if seen[:2] == b"\x15\x03":
        return "the peer answered with a TLS alert; use a tls:// address"
    if seen[:9].split(b" ")[0] in _HTTP_WORDS:
        return f"the peer speaks HTTP ({show(seen, 32)})"
    if seen.startswith(b"SSH-"):
        return f"the peer is an SSH server ({show(seen, 32)})"
    return f"it begins {show(seen)}"


def mangled(seen: bytes) -> str | None:
    """A sentence if `seen` holds the preface as a terminal or a text filter leaves it."""
    name = PREFACE[1:5]
    forms = {
        b"\x89" + name + b"\n\x1a": "carriage returns were removed",
        b"\x89" + name + b"\r\r\n": "line ends were doubled",
        b"\x89" + name + b"\n\n": "carriage returns became newlines",
        b"^I" + name: "control bytes were echoed",
        b"\t" + name: "the high bit was cut",
        "\ufffd".encode() + name: "bytes were decoded as text",
        "\x89".encode() + name: "bytes were encoded again as UTF-8",
    }
    for form, what in forms.items():
        if form in seen:
            return f"a terminal or text filter is in the path ({what}): run the command without a tty"
    return None
