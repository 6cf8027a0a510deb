import numpy as np
import pytest
import tensorflow as tf

from tests.methods import one_weight
from tff_reg import methods


@pytest.mark.parametrize("scaled, gamma_scale", [("code", 1.5), ("kernels", 1.0)])
def test_scales_kernels_by_their_magnitude_but_not_biases(scaled, gamma_scale):
    fedasam = methods.FedASAM(radius=0.5, offset=0.5, scaled=scaled)
    variables = [
        tf.Variable([[2.0, -1.0]], name="dense/kernel", dtype=tf.float64),
        tf.Variable([1.0, 1.0], name="norm/gamma", dtype=tf.float64),
        tf.Variable([3.0, 5.0], name="dense/bias", dtype=tf.float64),
    ]
    values = [[[3.0, 0.0]], [0.0, 4.0], [12.0, 0.0]]
    gradient = [tf.constant(value, tf.float64) for value in values]
    ascent = one_weight.perturbation(
        fedasam, one_weight.local(weights=variables), gradient
    )
    # t = |w| + 0.5 is [2.5, 1.5] for the kernel; t g is 7.5, 4 gamma_scale and 12.
    factor = 0.5 / np.sqrt(7.5**2 + (4 * gamma_scale) ** 2 + 12**2)
    np.testing.assert_allclose(ascent[0], [[factor * 2.5 * 7.5, 0]], rtol=1e-14)
    np.testing.assert_allclose(ascent[1], [0, factor * gamma_scale**2 * 4], rtol=1e-14)
    np.testing.assert_allclose(ascent[2], [factor * 12, 0], rtol=1e-14)


@pytest.mark.parametrize(
    "name, shape, is_scaled",
    [
        ("gru/gru_cell/bias", (2, 9), False),
        ("attention/query/bias", (2, 4), False),
        ("norm/beta", (4, 4), False),
        ("rms_normalization/scale", (4,), True),
        ("p_re_lu/alpha_1", (3, 4), True),
        ("biases/embeddings", (3, 4), True),
    ],
)
def test_scales_what_pytorch_names_weight(name, shape, is_scaled):
    weight = tf.Variable(tf.fill(shape, 2.0), name=name)
    bias = tf.Variable(tf.ones([1]), name="bias")
    fedasam = methods.FedASAM(radius=1.0, offset=1.0)
    gradient = [tf.ones_like(weight), tf.ones_like(bias)]
    found = fedasam.perturbation(one_weight.local(weights=[weight, bias]), gradient)
    ratio = float(tf.reduce_max(found[0]) / found[1][0])
    assert ratio == pytest.approx(9.0 if is_scaled else 1.0)
