import numpy as np
import pytest
import tensorflow as tf

from tff_reg import methods, models


def _step(activations):
    outputs = models.Outputs([], None, None, activations)
    return methods.Step(network=None, outputs=outputs)


ACTIVATIONS = (tf.constant([[1.0, 2.0], [0.0, 3.0]]), tf.constant([[2.0]]))


def _convnet():
    images = [np.arange(32.0).reshape(2, 2, 4, 2) / k for k in (1, 2, 4)]
    units = [np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([[1.0, 0.0], [3.0, 4.0]])]
    return [tf.constant(a) for a in (*images, *units)]


@pytest.mark.parametrize(
    "terms, of_third, of_variance",
    [
        ("paper", np.mean(np.square(np.arange(32) / 4)), 0.0),
        # Windows of 2 x 2: the last position of each.
        (
            "samcode",
            np.mean(np.square(np.array([10, 11, 14, 15, 26, 27, 30, 31]) / 4)),
            0.0,
        ),
        # (1 and 3: 2; 0 and 4: 8) over n - 1 = 1.
        ("code", 0.0, (2 + 8) / 2),
    ],
)
def test_the_authors_convnet_has_other_terms(terms, of_third, of_variance):
    term = methods.MAN(terms=terms, scaling="paper", strength=2.0).term(
        _step(_convnet())
    )
    first = np.mean(np.square(np.arange(32)))
    expected = first + first / 4 + of_third + 50 / 4 + 26 / 4 + of_variance
    assert float(term.raw) == pytest.approx(expected)
    assert float(term.weighted) == pytest.approx(2 * expected)


def test_the_terms_of_the_convnet_are_refused_elsewhere():
    with pytest.raises(ValueError, match="man_terms=code: .* agree with the paper"):
        methods.MAN(terms="code").term(_step(ACTIVATIONS))


def test_raises_without_activations():
    with pytest.raises(ValueError, match="no non-linear layer"):
        methods.MAN().term(_step(()))
