"""Seeds of the simulation: whole peers over connections that are cut and held up, and nothing is lost or done twice."""

from __future__ import annotations

import pytest

from rlm_wire.testing.simulation import simulate, simulate_corruption


@pytest.mark.parametrize("seed", range(12))
def test_everything_is_done_once_and_in_order_whatever_the_network_does(seed: int) -> None:
    """[R-7.3.10] [R-7.3.11]"""
    simulate(seed)


@pytest.mark.parametrize("seed", range(12))
def test_bytes_that_come_twice_make_nothing_run_twice_and_nobody_wait_for_ever(seed: int) -> None:
    """[R-7.4.1]"""
    simulate_corruption(seed)


def test_the_network_does_cut() -> None:
    assert simulate(3) + simulate(4) + simulate(5) > 3


def test_a_seed_is_replayed_exactly() -> None:
    assert simulate(8) == simulate(8)
