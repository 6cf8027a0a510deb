"""The tests of both methods."""

import ahead
import variates

from tff_reg import testing


def test_without_a_radius_it_is_fedavg():
    testing.assert_fedavg(ahead.Ahead(radius=0.0))


def test_variates_are_kept_between_rounds():
    testing.assert_resumes(variates.Variates())
    states = testing.train([variates.Variates()], rounds=1).client_states
    assert all("variates/own" in state for state in states)


def test_both_go_together():
    testing.assert_combinations(ahead.Ahead(), names=["fedprox", "scaffold"])
    testing.train([ahead.Ahead(), variates.Variates()])
