"""Whether an endpoint refused a conversation for its length. Pure.

A code is believed. Only where there is none are the words looked at: endpoints that imitate the API often give no more.
"""

from __future__ import annotations

from typing import Any, Final

CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
"""What OpenAI and most others, llama.cpp and Anthropic call it; as `code` or as `type`."""

PHRASES: Final = (
    "maximum context length",
    "context length exceeded",
    "context_length_exceeded",
    "exceeds the context",
    "exceeds the available context",
    "exceed context limit",
    "longer than the maximum model length",
    "prompt is too long",
    "input is too long",
    "token count exceeds",
    "reduce the length of the messages",
)

PAYLOAD_TOO_LARGE: Final = 413


def is_overflow(status: int | None, error: Any) -> bool:
    """`status` is the response's (None: reported within a stream), `error` its decoded body, or the text of it."""
    if status == PAYLOAD_TOO_LARGE:
        return True
    if status not in (None, 400, 422):
        return False
    inner = error.get("error", error) if isinstance(error, dict) else error
    if isinstance(inner, dict):
        if not CODES.isdisjoint(str(inner.get(name)) for name in ("code", "type")):
            return True
        inner = inner.get("message", inner.get("detail"))
    text = str(inner).lower()
    return any(phrase in text for phrase in PHRASES)
