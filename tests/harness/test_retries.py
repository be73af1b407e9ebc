import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_harness.model.retries import RetryPolicy, is_retryable, parse_retry_after

NOON = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("0", 0.0),
        ("-3", None),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Sun, 06 Nov 1994 08:50:07 GMT", 30.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        ("Sun, 99 Nov 1994 08:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value, seconds):
    assert parse_retry_after(value, NOON) == seconds


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529, 599])
def test_what_may_pass_is_tried_again(status):
    assert is_retryable(status)


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 413, 422])
def test_what_will_not_pass_is_not_tried_again(status):
    assert not is_retryable(status)


@settings(deadline=None)
@given(st.integers(1, 10_000), st.floats(0, 1), st.none() | st.floats(0, 1e9))
def test_waits_stay_within_their_bounds(failures, jitter, asked):
    policy = RetryPolicy(attempts=10_000, first=1.0, cap=30.0, longest_wait=120.0)
    delay = policy.delay(failures, jitter, asked)
    if failures >= policy.attempts or (asked is not None and asked > policy.longest_wait):
        assert delay is None
    elif asked:
        assert asked <= delay <= asked * 1.1
    else:
        assert 0.5 <= delay <= policy.cap


def test_waits_double_until_the_cap():
    policy = RetryPolicy(attempts=9, first=1.0, cap=30.0)
    assert [policy.delay(n, 0.0, None) for n in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


def test_an_endpoint_that_was_never_reached_is_given_up_sooner():
    policy = RetryPolicy()
    assert policy.delay(2, 0.0, None, met=False) == 2
    assert policy.delay(3, 0.0, None, met=False) is None
    assert policy.delay(3, 0.0, None) == 4
    assert RetryPolicy(attempts=1).delay(1, 0.0, None, met=False) is None


def test_the_last_attempt_is_the_last():
    assert RetryPolicy(attempts=3).delay(3, 0.0, None) is None
