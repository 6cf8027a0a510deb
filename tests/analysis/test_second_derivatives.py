"""Products of networks against differences of gradients."""

import numpy as np
import pytest
import tensorflow as tf

from tests.analysis import small
from tff_reg import models
from tff_reg.analysis import hessian, second_derivatives
from tff_reg.seam import tensorflow_internals


def blocks_with(layer, shape=(5, 5, 4)):
    model = tf.keras.Sequential(
        [
            tf.keras.Input(shape),
            small.LAYERS.Conv2D(4, 3, activation="tanh", dtype="float64"),
            layer,
            small.LAYERS.Flatten(dtype="float64"),
            small.LAYERS.Dense(3, dtype="float64"),
        ]
    )
    small.randomize(model)
    return model


def difference_of_gradients(curvature, vector, step=1e-5):
    """The product by central differences of the gradient."""
    before = [variable.numpy() for variable in curvature.variables]
    found = []
    for sign in (1, -1):
        moved = zip(curvature.variables, before, curvature.unflatten(vector))
        for variable, value, direction in moved:
            variable.assign(value + sign * step * direction)
        found.append(curvature.gradient())
    for variable, value in zip(curvature.variables, before):
        variable.assign(value)
    return (found[0] - found[1]) / (2 * step)


def check_by_differences(model, examples, **options):
    curvature = hessian.Hessian(model, examples, **options)
    vector = np.random.default_rng(7).normal(size=curvature.size)
    # Short steps, so that no ReLU changes its side.
    vector /= np.linalg.norm(vector)
    product = curvature.product(vector)
    expected = difference_of_gradients(curvature, vector)
    assert np.linalg.norm(product - expected) < 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "make_layer",
    [
        # TensorFlow's own second derivatives of the first two are wrong.
        lambda: small.LAYERS.LayerNormalization(dtype="float64"),
        lambda: small.LAYERS.BatchNormalization(dtype="float64"),
        lambda: small.LAYERS.GroupNormalization(2, dtype="float64"),
        # Tiles, tiles that leave a rest, tiles beyond the image, overlapping windows.
        lambda: small.LAYERS.MaxPool2D(3, dtype="float64"),
        lambda: small.LAYERS.MaxPool2D(2, dtype="float64"),
        lambda: small.LAYERS.MaxPool2D(2, padding="same", dtype="float64"),
        lambda: small.LAYERS.MaxPool2D(3, strides=1, dtype="float64"),
        lambda: small.LAYERS.MaxPool2D((1, 3), padding="same", dtype="float64"),
        lambda: small.LAYERS.ReLU(dtype="float64"),
    ],
)
def test_keras_layers(make_layer, training):
    model = blocks_with(make_layer())
    statistics = [variable.numpy() for variable in model.non_trainable_variables]
    examples = small.make_examples(6, (5, 5, 4))
    check_by_differences(model, examples, training=training)
    # Passes in training mode leave no trace in BatchNorm's statistics.
    for variable, value in zip(model.non_trainable_variables, statistics):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize(
    "name,norm,training",
    [
        pytest.param("resnet8", "group", False, marks=pytest.mark.slow),
        pytest.param("resnet8", "batch", True, marks=pytest.mark.slow),
        ("cnn", "batch", True),
        ("cnn", "group", False),
    ],
)
def test_our_networks(name, norm, training):
    model = models.build_model_fn(
        name, image_shape=(8, 8, 3), num_classes=3, norm=norm, dtype="float64"
    )()
    examples = small.make_examples(4, (8, 8, 3))
    check_by_differences(model, examples, training=training)


def test_float32_training_mode_agrees_with_float64():
    # Our BatchNorm is TensorFlow's fused one in float32, and not in float64.
    products, weights = [], None
    for dtype in ("float32", "float64"):
        network = models.build_model_fn(
            "cnn", image_shape=(8, 8, 3), num_classes=3, norm="batch", dtype=dtype
        )().network
        weights = weights or [v.numpy() for v in network.trainable_variables]
        for variable, value in zip(network.trainable_variables, weights):
            variable.assign(value)
        x, y = small.make_examples(6, (8, 8, 3))
        curvature = hessian.Hessian(network, (x.astype(np.float32), y), training=True)
        products.append(curvature.product(np.ones(curvature.size)))
    error = np.linalg.norm(products[0] - products[1])
    assert error < 1e-4 * np.linalg.norm(products[1])


def test_moments():
    variable = tf.Variable(np.ones(3))

    def loss_fn(batch):
        mean, variance = tf.nn.moments(batch * variable, axes=[1])
        return tf.reduce_mean(mean**3 + variance**2)

    data = [np.random.default_rng(0).normal(size=(4, 3))]
    check_by_differences(loss_fn, data, variables=[variable])


@pytest.mark.parametrize("half_pixel_centers", [False, True])
def test_bilinear_resizing(half_pixel_centers):
    """The Hessian of |R w^2|^2 is 4 diag(R'R w^2) + 8 diag(w) R'R diag(w)."""
    w = np.random.default_rng(0).normal(size=9).astype(np.float32)

    def resize(images):
        images = tf.reshape(images, [-1, 3, 3, 1])
        resized = tf.raw_ops.ResizeBilinear(
            images=images, size=[5, 5], half_pixel_centers=half_pixel_centers
        )
        return tf.reshape(resized, [-1, 25])

    variable = tf.Variable(w)

    def loss(batch):
        return tf.reduce_mean(batch) * tf.reduce_sum(resize(variable**2) ** 2)

    curvature = hessian.Hessian(loss, [np.ones(2, np.float32)], variables=[variable])
    found = np.stack([curvature.product(unit) for unit in np.eye(9)])
    matrix = np.asarray(resize(np.eye(9, dtype=np.float32)))
    square = matrix @ matrix.T
    expected = 4 * np.diag(square @ w**2) + 8 * np.outer(w, w) * square
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_all_gradients_that_tensorflow_does_not_differentiate_are_known():
    known = set(second_derivatives._registered())
    # Of integers, of handles of arrays, and a handle's own.
    known |= {"BroadcastGradientArgs"}
    known |= {f"TensorArrayGrad{end}" for end in ("", "V2", "V3", "WithShape")}
    registry = tensorflow_internals.gradient_registry()
    gradients = {
        name
        for name, entry in registry.items()
        if entry["type"] is None and "Grad" in name
    }
    assert gradients <= known
