import math

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models

LOCAL = [[1.0, 0.0], [0.0, 2.0]]
RECEIVED = [[1.0, 1.0], [0.0, -1.0]]
PREVIOUS = [[0.0, 3.0], [4.0, 3.0]]


def _outputs(embedding):
    return models.Outputs([], tf.constant(embedding, tf.float64), None, ())


def _step(local=LOCAL, received=RECEIVED, previous=PREVIOUS):
    others = {"global": _outputs(received), "previous": _outputs(previous)}
    return methods.Step(network=None, outputs=_outputs(local), outputs_of=others.get)


def test_is_the_contrast_of_the_cosines():
    towards, away = [math.sqrt(0.5), -1.0], [0.0, 0.6]
    expected = np.mean(
        [
            -math.log(math.exp(g / 0.5) / (math.exp(g / 0.5) + math.exp(p / 0.5)))
            for g, p in zip(towards, away)
        ]
    )
    term = methods.MOON(strength=3.0).term(_step())
    assert float(term.raw) == pytest.approx(expected)
    assert float(term.weighted) == pytest.approx(3 * expected)
    assert float(term.measurements["global_cosine"]) == pytest.approx(np.mean(towards))
    assert float(term.measurements["previous_cosine"]) == pytest.approx(0.3)


def test_is_the_logarithm_of_two_while_all_models_agree():
    term = methods.MOON(temperature=0.1).term(_step(LOCAL, LOCAL, LOCAL))
    assert float(term.raw) == pytest.approx(math.log(2))


def test_raises_on_a_temperature_of_zero():
    with pytest.raises(ValueError, match="moon_temperature=0.0: .* greater than 0"):
        methods.MOON(temperature=0.0)
