import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models
from tff_reg.methods import univarfl


def test_predictions_that_never_vary_miss_the_whole_threshold():
    uniform = tf.fill([4, 5], tf.constant(0.2, tf.float64))
    assert float(univarfl.missing_variance(uniform, False)) == pytest.approx(0.16)
    assert float(univarfl.missing_variance(uniform, True)) == pytest.approx(0.2)


def test_every_class_predicted_once_misses_nothing():
    certain = tf.eye(5, dtype=tf.float64)
    for is_sample in (False, True):
        missing = univarfl.missing_variance(certain, is_sample)
        assert float(missing) == pytest.approx(0.0, abs=1e-15)


def test_standard_deviations_can_stand_for_the_variances():
    # Standard deviations over n - 1 of the two columns: 0.1 sqrt(2) and 0.
    probabilities = tf.constant([[0.1, 0.5], [0.3, 0.5]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(probabilities)
        missing = univarfl.missing_variance(probabilities, True, True)
    threshold = np.sqrt(1 / 2)
    expected = (2 * threshold - 0.1 * np.sqrt(2)) / 2
    assert float(missing) == pytest.approx(expected)
    # d std / dx = (x - mean) / ((n - 1) std); that of 0 is taken as 0.
    slope = 0.1 / (0.1 * np.sqrt(2)) / 2
    gradient = tape.gradient(missing, probabilities)
    np.testing.assert_allclose(gradient, [[slope, 0], [-slope, 0]], rtol=1e-12)
    both = [
        methods.UniVarFL(spread=spread).term(_step(probabilities)).measurements
        for spread in ("variance", "deviation")
    ]
    assert both[0]["energy"] == both[1]["energy"]
    assert both[0]["missing_variance"] != both[1]["missing_variance"]


def _step(logits):
    outputs = models.Outputs([], logits, logits, ())
    return methods.Step(None, outputs)


def test_the_energy_is_the_sum_over_pairs():
    features = tf.constant([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]], tf.float64)
    # Cosines 0, -1 and 0, each pair twice.
    expected = 2 * (1 / 1.1 + 1 / 2.1 + 1 / 1.1) / 9
    energy = univarfl.hyperspherical_energy(features, 0.1)
    assert float(energy) == pytest.approx(expected)


def test_spreading_features_lowers_the_energy():
    close = tf.constant([[1.0, 0.0], [1.0, 0.1]])
    with tf.GradientTape() as tape:
        tape.watch(close)
        energy = univarfl.hyperspherical_energy(close, 1e-3)
    moved = close - 1e-4 * tape.gradient(energy, close)
    assert univarfl.hyperspherical_energy(moved, 1e-3) < energy
    angles = np.arctan2(moved[:, 1], moved[:, 0])
    assert angles[1] - angles[0] > np.arctan(0.1)


def test_raises_on_an_epsilon_of_zero():
    with pytest.raises(ValueError, match="univarfl_epsilon=0.0: .* greater than 0"):
        methods.UniVarFL(epsilon=0.0)
