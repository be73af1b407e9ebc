"""ReceiveBuffer and Preface: any bytes, in any chunks, against a model that has all of them at once."""

from __future__ import annotations

from typing import Final

from fuzz.choices import WHOLE, Choices, chunk_sizes
from fuzz.reach import Reach
from fuzz.rejections import check_listed
from rlm_wire.errors import RemoteProtocolError
from rlm_wire.frames.framing import Preface, ReceiveBuffer
from rlm_wire.frames.limits import BANNER_LIMIT, HEADER_SIZE, PREFACE

REACH: Final = Reach(
    lines={"rlm_wire.frames.framing": 95},
    functions=(
        "ReceiveBuffer.writable",
        "ReceiveBuffer.next_body_untrusted",
        "Preface.look_untrusted",
        "guess",
        "mangled",
        "show",
    ),
    marks=("body", "too long", "zero length", "preface", "banner", "mangled", "no preface"),
)

_LIMITS: Final = (8, 64, 1_000, 66_560)
_SMALLEST_CAPACITY: Final = 16 * 1024


def run(data: bytes) -> None:
    choices = Choices(data)
    mode = choices.byte()
    seed = choices.byte()
    if mode & 1:
        limit = choices.pick(_LIMITS)
        _check_bodies(_stream_of_bodies(choices) if mode & 2 else choices.rest(), limit, seed)
    else:
        _check_preface(_stream_with_preface(choices) if mode & 2 else choices.rest(), bool(mode & 4), seed)


def _stream_of_bodies(choices: Choices) -> bytes:
    stream = bytearray()
    while choices.left:
        length_error = choices.byte()
        body = choices.blob()
        length = len(body) if length_error < 240 else choices.number() % 2**32
        stream += length.to_bytes(HEADER_SIZE, "big") + body
    return bytes(stream)


def _stream_with_preface(choices: Choices) -> bytes:
    banner = choices.blob()
    times = choices.byte() % 4
    preface = bytearray(PREFACE)
    if choices.byte() >= 192:
        preface[choices.byte() % len(PREFACE)] = choices.byte()
    return banner * times + bytes(preface) + choices.rest()


def _check_bodies(stream: bytes, limit: int, seed: int) -> None:
    expected, ending, rest = _model(stream, limit)
    buffer = ReceiveBuffer(limit)
    found: list[bytes] = []
    at, step, error = 0, chunk_sizes(seed), None
    while at < len(stream) and error is None:
        space = buffer.writable()
        assert len(space) > 0, "no space to receive into"
        capacity = len(space) + len(buffer)
        assert capacity <= max(_SMALLEST_CAPACITY, limit + HEADER_SIZE), f"the buffer grew to {capacity} bytes"
        count = min(next(step), len(space), len(stream) - at)
        space[:count] = stream[at : at + count]
        at += count
        buffer.wrote(count)
        views = []
        try:
            while (body := buffer.next_body_untrusted()) is not None:
                views.append(body)
        except RemoteProtocolError as refused:
            error = refused
            check_listed(refused)
        found += map(bytes, views)  # all of them, only now: a view must outlive the taking of the next
    assert found == expected, "bodies differ from the model's"
    assert (error is not None) == (ending is not None), f"{error!r} but the model says {ending}"
    if error is None:
        assert buffer.peek() == rest, "what is left differs from the model's"
    REACH.mark_if(bool(found), "body")
    if ending is not None:
        REACH.mark("zero length" if ending == 0 else "too long")


def _model(stream: bytes, limit: int) -> tuple[list[bytes], int | None, bytes]:
    """Bodies, the forbidden length that ended them or None, and what is left."""
    bodies: list[bytes] = []
    while len(stream) >= HEADER_SIZE:
        length = int.from_bytes(stream[:HEADER_SIZE], "big")
        if length == 0 or length > limit:
            return bodies, length, b""
        if len(stream) < HEADER_SIZE + length:
            break
        bodies.append(stream[HEADER_SIZE : HEADER_SIZE + length])
        stream = stream[HEADER_SIZE + length :]
    return bodies, None, stream


def _check_preface(stream: bytes, skip_banner: bool, seed: int) -> None:
    whole = _look(stream, skip_banner, WHOLE)
    chunked = _look(stream, skip_banner, seed)
    assert whole == chunked, f"whole {whole}, in chunks {chunked}"
    found, banner, rest, error = whole
    if found:
        assert banner + PREFACE + rest == stream
        assert skip_banner or not banner
        REACH.mark("banner" if banner else "preface")
    elif error:
        REACH.mark(error)
    else:
        assert banner + rest == stream
        assert PREFACE not in stream


def _look(stream: bytes, skip_banner: bool, seed: int) -> tuple[bool, bytes, bytes, str]:
    """Whether it was found, the banner, what is left behind the preface, and the error."""
    buffer = ReceiveBuffer(BANNER_LIMIT)
    preface = Preface(skip_banner=skip_banner)
    at, step = 0, chunk_sizes(seed)
    while at < len(stream) and not preface.found:
        space = buffer.writable()
        count = min(next(step), len(space), len(stream) - at)
        space[:count] = stream[at : at + count]
        at += count
        buffer.wrote(count)
        try:
            preface.look_untrusted(buffer)
        except RemoteProtocolError as error:
            check_listed(error)
            # Without a banner the first wrong byte decides; why it seems wrong depends on how much has come.
            what = "mangled" if skip_banner and "terminal" in str(error) else "no preface"
            return False, b"", b"", what
        assert len(preface.banner) <= BANNER_LIMIT, "the banner is beyond its limit"
    if not preface.found:
        return False, preface.banner, buffer.peek() + stream[at:], ""
    return True, preface.banner, buffer.peek() + stream[at:], ""
