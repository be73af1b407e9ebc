"""How large a model's window is, as far as its endpoint tells in `/models`. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

_FIELDS: Final = ("max_model_len", "context_length", "context_window", "max_context_length")
"""There is no standard; these are what vLLM, OpenRouter, Groq and Mistral, and LM Studio say."""


class _Model(msgspec.Struct):
    id: str = ""
    max_model_len: int | None = None
    context_length: int | None = None
    context_window: int | None = None
    max_context_length: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def window_untrusted(body: bytes, model: str) -> int | None:
    """Tokens of `model`'s window, by the answer `body`; None if that does not say. Never raises."""
    try:
        entries = msgspec.json.decode(body, type=_Models).data
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    chosen = [entry for entry in entries if entry.id == model] or entries
    if len({entry.id for entry in chosen}) != 1:  # a server of one model calls it what it likes
        return None
    sizes = [getattr(chosen[0], field) for field in _FIELDS]
    return next((size for size in sizes if size and size > 0), None)
