"""When to try a model call again, and how long to wait. Pure: clock and randomness are arguments."""

from __future__ import annotations

import email.utils
import math

import msgspec

RETRYABLE_STATUS = frozenset({408, 409, 429})
"""Beside every 5xx: the request was fine, the moment was not."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """Waits of `first * 2**n` seconds, at most `cap`, each shortened by up to half at random; or what the server asks.

    `attempts` counts the first try too; there are only `attempts_to_meet` while the endpoint has never been reached, as
    its address is probably wrong. A server that asks for more than `longest_wait` seconds is not waited for.
    """

    attempts: int = 6
    attempts_to_meet: int = 3
    first: float = 1.0
    cap: float = 30.0
    longest_wait: float = 120.0

    def delay(self, failures: int, jitter: float, asked: float | None, *, met: bool = True) -> float | None:
        """Seconds to wait after `failures` tries (from 1), or None to give up.

        `jitter` is uniform in 0..1, so that many agents do not come back at the same instant. `asked` is the server's
        Retry-After: it is the least we wait. `met`: the endpoint has been reached before.
        """
        attempts = self.attempts if met else min(self.attempts, self.attempts_to_meet)
        if failures >= attempts or (asked is not None and asked > self.longest_wait):
            return None
        # The exponent is bounded since 2.0**1024 overflows; the cap is reached long before.
        backoff = min(self.cap, self.first * 2.0 ** min(failures - 1, 64))
        return asked * (1 + jitter / 10) if asked else backoff * (1 - jitter / 2)


def is_retryable(status: int) -> bool:
    return status in RETRYABLE_STATUS or 500 <= status <= 599


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or an HTTP date against `now` (Unix time).

    None if there is no such header or it makes no sense; a date in the past is 0.
    """
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
        except (ValueError, OverflowError):
            return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
