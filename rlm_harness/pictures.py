"""Pictures that a cell has shown, for a model that can see: which, how many, and in what form. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Final

import msgspec

from rlm_harness import prompts
from rlm_harness.model.interface import Message
from rlm_wire.methods.kernels import Display

MOST: Final = 4
"""Of one cell: each costs the model about as much as a page of text, in every request from then on."""

LARGEST: Final = 4 << 20
"""Bytes of one: endpoints refuse a request with a larger one, and with it the conversation."""

_WHOLE: Final = {
    "image/png": (b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"),
    "image/jpeg": (b"\xff\xd8\xff", b"\xff\xd9"),
    "image/gif": (b"GIF8", b";"),
}
"""How each kind begins and ends: an endpoint refuses what only claims to be a picture, too."""


class Picture(msgspec.Struct, frozen=True):
    kind: str
    data: bytes


def pictures_of(displays: Iterable[Display]) -> list[Picture]:
    """Those that a model can be shown, in order; of a display in several forms the first that fits."""
    pictures = []
    for display in displays:
        for kind, (beginning, end) in _WHOLE.items():
            data = display.binary.get(kind, b"")
            if len(data) <= LARGEST and data.startswith(beginning) and data.endswith(end):
                pictures.append(Picture(kind, data))
                break
    return pictures[:MOST]


def pictures_message(pictures: Iterable[Picture]) -> Message:
    """A message that shows them: results of tools are text."""
    parts = [{"type": "text", "text": prompts.runtime_event("notice", prompts.PICTURES)["content"]}]
    urls = [f"data:{picture.kind};base64,{base64.b64encode(picture.data).decode()}" for picture in pictures]
    return {"role": "user", "content": [*parts, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]}
