import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import linear, one_weight
from tff_reg import methods

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.mark.parametrize("ascent, added", [("code", 2.0), ("clean", 0.0)])
def test_climbs_along_the_gradient_and_its_previous_one(ascent, added):
    fedspeed = methods.FedSpeed(strength=0.4, radius=0.5, ascent=ascent)
    zero = tf.zeros([2], tf.float64)
    local = one_weight.local(start=[zero])
    local = dataclasses.replace(local, state=fedspeed.begin(local))
    gradient = [tf.constant([1.0, 0.0], tf.float64)]
    # At first there is no previous gradient: along (1, 0) by 0.5.
    (first,) = one_weight.perturbation_then(fedspeed, local, gradient)
    np.testing.assert_allclose(first, [0.5, 0], rtol=1e-6)
    clipped = [tf.constant([0.0, 2.0], tf.float64)]
    local = dataclasses.replace(local, state=fedspeed.keep(local, clipped))
    (second,) = one_weight.perturbation_then(fedspeed, local, gradient)
    direction = np.array([1.0, added])
    expected = 0.5 * direction / np.linalg.norm(direction)
    np.testing.assert_allclose(second, expected, rtol=1e-6)


def test_corrects_and_remembers_as_feddyn():
    fedspeed, feddyn = methods.FedSpeed(strength=0.4), methods.FedDyn(strength=0.4)
    local, gradient = one_weight.local(), [tf.constant(7.0, tf.float64)]
    for part in ("correct", "correct_clipped"):
        (expected,) = getattr(feddyn, part)(local, gradient)
        one_weight.assert_value(getattr(fedspeed, part)(local, gradient), expected)
    assert fedspeed.finish(local) == feddyn.finish(local)


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
