import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models
from tff_reg.methods import univarfl


def test_the_spread_can_be_measured_by_standard_deviations():
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
