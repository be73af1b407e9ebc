from hypothesis import given
from hypothesis import strategies as st

from rlm_harness.estimation import GREATEST_RATIO, LEAST_RATIO, TokenEstimate
from rlm_harness.events import Usage


def test_without_a_count_it_is_four_bytes_a_token():
    assert TokenEstimate().of(4001) == 1001


def test_a_count_is_believed_and_what_came_since_is_measured_by_it():
    estimate = TokenEstimate().calibrated(1000, 200, Usage(500, 80))
    assert estimate.of(1200) == 580
    assert estimate.of(1300) == 630


def test_reasoning_does_not_count_as_conversation():
    assert TokenEstimate().calibrated(1000, 40, Usage(250, 9000)).of(1040) == 290


def test_a_conversation_anew_keeps_only_what_a_byte_is_worth():
    assert TokenEstimate().calibrated(1000, 0, Usage(500, 0)).anew().of(100) == 50


def test_an_endpoint_that_counts_nothing_changes_nothing():
    assert TokenEstimate().calibrated(1000, 10, Usage()) == TokenEstimate()


@given(*[st.integers(0, 10**9)] * 5)
def test_nonsense_stays_bounded(asked, replied, prompt, completion, more):
    estimate = TokenEstimate().calibrated(asked, replied, Usage(prompt, completion))
    assert LEAST_RATIO <= estimate.ratio <= GREATEST_RATIO
    size = asked + replied
    assert estimate.of(size) <= estimate.of(size + more) <= estimate.of(size) + more + 1
