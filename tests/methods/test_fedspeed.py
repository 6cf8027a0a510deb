import numpy as np
import pytest

from tests.methods import linear
from tff_reg import methods

pytestmark = pytest.mark.usefixtures("in_process")


def test_with_radius_0_it_is_feddyn_to_the_bit():
    data_sets = [linear.whole(*linear.examples(seed)) for seed in range(2)]
    feddyn = linear.build(methods.FedDyn(strength=0.3))
    expected = linear.run(feddyn, feddyn.initialize(), data_sets, 2)
    start = linear.weights_of(feddyn, feddyn.initialize())
    results = {}
    for radius in (0.0, 0.1):
        fedspeed = linear.build(methods.FedSpeed(strength=0.3, radius=radius))
        state = linear.started(fedspeed, start)
        results[radius] = linear.run(fedspeed, state, data_sets, 2)
    linear.assert_close(results[0.0], expected, 0.0)
    moved, plain = results[0.1][1][0], expected[1][0]
    assert np.any(moved["fedspeed/h"][0] != plain["feddyn/h"][0])
