"""The receive buffer and the preface: whole, byte at a time, at each limit, and what strangers send."""

from __future__ import annotations

import pytest
from frames.joined import framed
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_wire.errors import RemoteProtocolError
from rlm_wire.frames.framing import Preface, ReceiveBuffer, readable
from rlm_wire.frames.limits import BANNER_LIMIT, MESSAGE_TEXT_LIMIT, PREFACE

LIMIT = 100_000


def fill(buffer: ReceiveBuffer, data: bytes) -> bytes:
    """Puts as much of `data` into the buffer as it takes now; the rest."""
    space = buffer.writable()
    count = min(len(space), len(data))
    space[:count] = data[:count]
    buffer.wrote(count)
    return data[count:]


def bodies_of(chunks: list[bytes], limit: int = LIMIT) -> list[bytes]:
    buffer, found = ReceiveBuffer(limit), []
    for chunk in chunks:
        rest = chunk
        while rest:
            rest = fill(buffer, rest)
            while (body := buffer.next_body_untrusted()) is not None:
                found.append(bytes(body))
    return found


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.lists(st.integers(1, 50)))
def test_bodies_do_not_depend_on_how_the_bytes_arrive(sent: list[bytes], cuts: list[int]) -> None:
    """[R-2.3.1] [R-2.3.4]"""
    data = b"".join(map(framed, sent))
    chunks, rest = [], data
    for cut in cuts:
        chunks.append(rest[:cut])
        rest = rest[cut:]
    chunks.append(rest)
    assert bodies_of(chunks) == sent
    assert bodies_of([data]) == sent
    assert bodies_of([data[i : i + 1] for i in range(len(data))]) == sent


@pytest.mark.parametrize("size", [1, 16_380, 16_384, 65_536, LIMIT - 1, LIMIT])
def test_a_body_up_to_the_limit_is_taken_whatever_comes_before_and_behind_it(size: int) -> None:
    """[R-2.3.3]"""
    body = bytes(range(256)) * (size // 256 + 1)
    sent = [b"x" * 9_000, body[:size], b"y", body[:size]]
    assert bodies_of([b"".join(map(framed, sent))]) == sent


def test_a_body_beyond_the_limit_is_refused_at_its_length_without_holding_more() -> None:
    """[R-2.3.3]"""
    for length in (LIMIT + 1, 0xFFFF_FFFF):
        buffer = ReceiveBuffer(LIMIT)
        fill(buffer, length.to_bytes(4, "big"))
        with pytest.raises(RemoteProtocolError, match="the limit is 100000") as caught:
            buffer.next_body_untrusted()
        assert caught.value.code == "resource_exhausted"
        assert len(buffer.writable()) <= LIMIT


def test_an_empty_body_is_refused() -> None:
    """[R-2.3.2]"""
    with pytest.raises(RemoteProtocolError, match="0 bytes") as caught:
        bodies_of([bytes(4)])
    assert caught.value.code == "invalid_argument"


def test_the_buffer_holds_no_more_than_one_frame_of_the_limit() -> None:
    buffer = ReceiveBuffer(LIMIT)
    rest = framed(b"z" * LIMIT) * 5
    largest = 0
    while rest:
        rest = fill(buffer, rest)
        largest = max(largest, len(buffer))
        while buffer.next_body_untrusted() is not None:
            pass
    assert largest <= LIMIT + 4


def test_views_hold_until_the_next_writable() -> None:
    buffer = ReceiveBuffer(LIMIT)
    fill(buffer, framed(b"first") + framed(b"second"))
    first, second = buffer.next_body_untrusted(), buffer.next_body_untrusted()
    assert (first, second) == (b"first", b"second")
    assert buffer.next_body_untrusted() is None
    assert len(buffer) == 0


def look(data: bytes, *, skip_banner: bool, chunk: int) -> tuple[bool, bytes, bytes]:
    """(found, banner, what follows) after all of `data`, in chunks."""
    buffer, preface = ReceiveBuffer(64 * 1024), Preface(skip_banner=skip_banner)
    rest = data
    while rest and not preface.found:
        piece, rest = rest[:chunk], rest[chunk:]
        rest = fill(buffer, piece) + rest
        preface.look_untrusted(buffer)
    return preface.found, preface.banner, buffer.peek() + rest


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize("skip_banner", [False, True])
def test_the_preface_is_taken_and_nothing_behind_it(skip_banner: bool, chunk: int) -> None:
    """[R-2.1.2]"""
    assert look(PREFACE + b"after", skip_banner=skip_banner, chunk=chunk) == (True, b"", b"after")
    for size in range(8):
        assert look(PREFACE[:size], skip_banner=skip_banner, chunk=chunk)[0] is False


@pytest.mark.parametrize("chunk", [13, 1000, 1 << 20])
@pytest.mark.parametrize("size", [1, 7, 8, 4096, BANNER_LIMIT - 1, BANNER_LIMIT])
def test_a_banner_up_to_the_limit_is_skipped_and_kept(size: int, chunk: int) -> None:
    """[R-2.2.1]"""
    banner = (b"Welcome to the machine\r\n" * (size // 24 + 1))[:size]
    found, kept, behind = look(banner + PREFACE + b"after", skip_banner=True, chunk=chunk)
    assert (found, kept, behind) == (True, banner, b"after")


@pytest.mark.parametrize("chunk", [1000, 1 << 20])
@pytest.mark.parametrize("tail", [PREFACE, b"and on and on"])
def test_a_banner_beyond_the_limit_is_refused_however_it_arrives(tail: bytes, chunk: int) -> None:
    """[R-2.2.1]"""
    with pytest.raises(RemoteProtocolError, match="no preface in 65536 bytes; they begin b'noise"):
        look(b"noise" * (BANNER_LIMIT // 5) + b"xx" + tail, skip_banner=True, chunk=chunk)


MANGLED = {
    b"\x89RLMW\n\x1a": "carriage returns were removed",
    b"\x89RLMW\r\r\n\x1a": "line ends were doubled",
    b"\x89RLMW\n\n\x1a": "carriage returns became newlines",
    b"^IRLMW\r\n^Z": "control bytes were echoed",
    b"\tRLMW\r\n\x1a": "the high bit was cut",
    b"\xef\xbf\xbdRLMW\r\n\x1a": "bytes were decoded as text",
    b"\xc2\x89RLMW\r\n\x1a": "bytes were encoded again as UTF-8",
}


@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
@pytest.mark.parametrize("banner", [b"", b"Last login: Thu\r\n"])
@pytest.mark.parametrize("seen", MANGLED)
def test_a_terminal_in_the_path_is_named_however_the_bytes_arrive(seen: bytes, banner: bytes, chunk: int) -> None:
    """[R-2.2.2]"""
    with pytest.raises(RemoteProtocolError, match=MANGLED[seen]):
        look(banner + seen + b"....", skip_banner=True, chunk=chunk)


@pytest.mark.parametrize(
    ("seen", "guess"),
    [
        (b"GET / HTTP/1.1\r\n", "speaks HTTP"),
        (b"HTTP/1.1 400 Bad Request\r\n", "speaks HTTP"),
        (b"\x16\x03\x01\x02\x00", "speaks TLS"),
        (b"\x15\x03\x03\x00\x02", "TLS alert"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH server"),
        (b"hello", "it begins b'hello'"),
        (b"\x89RLMW\n\x1a", "carriage returns were removed"),
        (b"\x00" * 1000, r"it begins b'\\x00.*\.\.\.$"),
    ],
)
def test_a_stranger_is_refused_at_its_first_wrong_byte_and_named(seen: bytes, guess: str) -> None:
    """[R-2.1.2]"""
    with pytest.raises(RemoteProtocolError, match=guess):
        look(seen, skip_banner=False, chunk=1 << 20)
    with pytest.raises(RemoteProtocolError):
        look(seen, skip_banner=False, chunk=1)


def test_a_peers_text_is_cut_and_shows_no_control_characters() -> None:
    assert readable("\x1b[31mred\x07\tand\n\x9bmore") == "\ufffd[31mred\ufffd\tand\n\ufffdmore"
    assert len(readable("x" * 1_000_000)) == MESSAGE_TEXT_LIMIT
