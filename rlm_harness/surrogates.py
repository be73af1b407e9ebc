r"""JSON with escapes that are half a character, `\ud800` for instance: each half becomes U+FFFD, as decoders do. Pure.

A model may give such a thing, and json.dumps passes it on; it has no UTF-8, so nothing could be done with it here.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

Decoded = TypeVar("Decoded")

_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"

# Each match is as much as possible of what stays, in group 1, or of halves. Escapes are read from the left, as a
# backslash may be escaped itself; possessive, as nothing is gained from reading them another way.
_PART: Final = re.compile(
    rb"((?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F][0-9a-fA-F]{2})|%b%b)++)|(?:%b(?!%b)|%b)++"
    % (_HIGH, _LOW, _HIGH, _LOW, _LOW),
    re.DOTALL,
)


def without_halves(data: bytes) -> bytes:
    """The same JSON, with a character for each half of one. What is no JSON stays as it is, but for such escapes."""
    if _HALF.search(data) is None:
        return data
    return _PART.sub(lambda part: part[1] or rb"\ufffd" * (len(part[0]) // 6), data)


def decode(decoder: msgspec.json.Decoder[Decoded], data: bytes) -> Decoded:
    """What `decoder` makes of `data`, with U+FFFD for halves of characters. Raises what it raises."""
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        if (whole := without_halves(data)) is data:
            raise
        return decoder.decode(whole)
