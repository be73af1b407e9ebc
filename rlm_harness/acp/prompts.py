"""What a prompt says: blocks of the protocol as the content of a message. Pure."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import Any, Final

from acp.schema import (
    AudioContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

from rlm_harness.acp.jsonrpc import invalid_params
from rlm_harness.model.interface import Content

Block = TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock

_PICTURE: Final = re.compile(r"image/[a-z0-9.+-]{1,40}")


def content_of(blocks: Sequence[Block]) -> Content:
    """Text alone as text, joined; with pictures, parts in their order. Raises RpcError."""
    parts: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        match block:
            case TextContentBlock(text=text):
                _say(parts, text)
            case ImageContentBlock(data=data, mime_type=kind):
                if not _PICTURE.fullmatch(kind):
                    raise invalid_params(f"prompt.{place}: is no picture")
                if not _is_base64(data):
                    raise invalid_params(f"prompt.{place}.data: is not Base64")
                parts.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}})
            case ResourceContentBlock(name=name, uri=uri):
                _say(parts, f"[{name}]({uri})")
            case EmbeddedResourceContentBlock(resource=TextResourceContents(uri=uri, text=text)):
                _say(parts, f"\n[{uri}]\n{text}\n")
            case _:
                raise invalid_params(f"prompt.{place}: blocks of type {block.type!r} are not supported")
    if all(part["type"] == "text" and not part["text"].strip() for part in parts):
        raise invalid_params("prompt: is empty")
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _is_base64(data: str) -> bool:
    try:
        return bool(binascii.a2b_base64(data, strict_mode=True))
    except ValueError:
        return False


def _say(parts: list[dict[str, Any]], text: str) -> None:
    if parts and parts[-1]["type"] == "text":
        parts[-1]["text"] += text
    elif text:
        parts.append({"type": "text", "text": text})


def behind(said: Sequence[str], content: Content) -> Content:
    """`content` with what was `said` before it in front."""
    if not said:
        return content
    before = "\n\n".join(said)
    if isinstance(content, str):
        return f"{before}\n\n{content}"
    return [{"type": "text", "text": f"{before}\n\n"}, *content]
