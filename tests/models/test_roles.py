"""Filters are those of PyTorch's first axis; biases what PyTorch names `bias`."""

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import one_weight
from tff_reg import methods, models
from tff_reg.models import roles

_ATTENTION = [*3 * [(0,), ()], (0, 1), ()]


def _text(keras):
    L = keras.layers
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(10, 4)(inputs)
    x = L.LayerNormalization()(L.MultiHeadAttention(2, 3)(x, x))
    return keras.Model(inputs, L.Dense(3)(L.GRU(5)(x)))


def _images(keras):
    L = keras.layers
    return keras.Sequential(
        [
            *(keras.Input((8, 8, 4)), L.DepthwiseConv2D(3, depth_multiplier=2)),
            *(L.SeparableConv2D(4, 3), L.Conv2D(6, 3, groups=2), L.PReLU()),
            *(L.Conv2DTranspose(2, 3), L.Flatten(), L.Dense(3)),
        ]
    )


@pytest.mark.parametrize(
    "build, axes, biases",
    [
        (
            _text,
            [(1,), *_ATTENTION, (), (), (0,), (0,), (0,), (0,), ()],
            [2, 4, 6, 8, 10, 13, 15],
        ),
        (
            _images,
            [
                *((0, 1), (), (0, 1), (0, 1, 2), (), (0, 1, 2), ()),
                *((0, 1), (0, 1, 3), (), (0,), ()),
            ],
            [1, 4, 6, 9, 11],
        ),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_weights_of_keras_have_their_layers_filters(
    keras, build, axes, biases, in_place
):
    network = models.from_keras(build(keras))(in_place=in_place).network
    weights = network.trainable_variables
    assert roles.filter_axes(network, weights) == axes
    assert [n for n, w in enumerate(weights) if roles.is_bias(w)] == biases


@pytest.mark.parametrize("shape, filters", [((2, 2, 3, 1), (0, 1)), ((2, 3, 4), (1,))])
def test_fedsol_scales_all_outputs_of_a_grouped_kernel_together(shape, filters):
    """N = F.normalize(|w - wg|, dim=0) of PyTorch's [out, in / groups, ...]."""
    w, gradient = np.random.default_rng(0).normal(size=(2, *shape))
    outputs = tuple(n for n in range(len(shape)) if n not in filters)
    local = one_weight.local(
        weights=[tf.constant(w)],
        start=[tf.zeros(shape, tf.float64)],
        output_axes=[outputs],
    )
    (found,) = one_weight.perturbation(
        methods.FedSOL(radius=0.7), local, [tf.constant(gradient)]
    )
    torch = np.abs(np.moveaxis(w, filters, range(len(filters))))
    flat = torch.reshape(-1, np.prod([shape[n] for n in outputs]))
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    unit = np.moveaxis(unit.reshape(torch.shape), range(len(filters)), filters)
    expected = 0.7 * unit * gradient / np.linalg.norm(gradient)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_our_own_grouped_kernels_say_their_filters():
    model_fn = models.build_model_fn("shufflenet", image_shape=[8, 8, 1], num_classes=3)
    network = model_fn().network
    found = {
        (w.shape.rank, axes)
        for w, axes in zip(
            network.trainable_variables,
            roles.filter_axes(network, network.trainable_variables),
        )
    }
    assert found == {(1, ()), (2, (0,)), (3, (1,)), (4, (0, 1)), (4, (0, 1, 2))}
