"""How many tokens a conversation has, between two replies that say so. Pure."""

from __future__ import annotations

import math

import msgspec

from rlm_harness.events import Usage

TOKENS_PER_BYTE = 0.25
"""Until the endpoint has counted: right for English, low for code and Chinese, and soon corrected."""

LEAST_RATIO, GREATEST_RATIO = 1 / 16, 1.0
"""No tokenizer is beyond these; an endpoint that reports nonsense is."""


class TokenEstimate(msgspec.Struct, frozen=True):
    """The first `size` bytes of the conversation have `counted` tokens; those behind them `ratio` each."""

    ratio: float = TOKENS_PER_BYTE
    counted: int = 0
    size: int = 0

    def of(self, size: int) -> int:
        """Tokens of a conversation that has `size` bytes by now."""
        return self.counted + math.ceil(max(size - self.size, 0) * self.ratio)

    def calibrated(self, asked: int, replied: int, usage: Usage) -> TokenEstimate:
        """With what the endpoint counted for `asked` bytes, which were answered with `replied` more."""
        if not usage.prompt_tokens or asked <= 0:
            return self
        ratio = min(max(usage.prompt_tokens / asked, LEAST_RATIO), GREATEST_RATIO)
        # Reasoning counts as completion but is not sent again; no text has more tokens than bytes.
        return TokenEstimate(ratio, usage.prompt_tokens + min(usage.completion_tokens, replied), asked + replied)

    def anew(self) -> TokenEstimate:
        """For another conversation with the same model: nothing is counted yet."""
        return TokenEstimate(self.ratio)
