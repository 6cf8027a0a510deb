"""The tests of both methods."""

import ahead
import numpy as np
import variates

from tff_reg import methods, testing


def test_without_a_radius_it_is_fedavg():
    testing.assert_fedavg(ahead.Ahead(radius=0.0))


def test_variates_are_kept_between_rounds():
    testing.assert_resumes(variates.Variates())
    states = testing.train([variates.Variates()], rounds=1).client_states
    assert all("variates/own" in state for state in states)


def test_variates_compute_what_scaffold_does():
    ours, theirs = (
        testing.train([each], rounds=3).weights
        for each in (variates.Variates(), methods.SCAFFOLD())
    )
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_both_go_together():
    testing.assert_combinations(ahead.Ahead(), names=["fedprox", "scaffold"])
    testing.train([ahead.Ahead(), variates.Variates()])
