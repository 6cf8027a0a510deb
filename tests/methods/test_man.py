import pytest
import tensorflow as tf

from tff_reg import methods, models


def _step(activations):
    outputs = models.Outputs([], None, None, activations)
    return methods.Step(network=None, outputs=outputs)


ACTIVATIONS = (tf.constant([[1.0, 2.0], [0.0, 3.0]]), tf.constant([[2.0]]))


@pytest.mark.parametrize("scaling, factor", [("code", 0.05), ("paper", 0.1)])
def test_is_the_sum_of_the_layers_mean_squares(scaling, factor):
    term = methods.MAN(strength=0.1, scaling=scaling).term(_step(ACTIVATIONS))
    assert float(term.raw) == pytest.approx((1 + 4 + 9) / 4 + 4)
    assert float(term.weighted) == pytest.approx(factor * 7.5)


def test_raises_without_activations():
    with pytest.raises(ValueError, match="no non-linear layer"):
        methods.MAN().term(_step(()))
