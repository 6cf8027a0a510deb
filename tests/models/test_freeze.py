import collections

import numpy as np
import pytest
import tensorflow as tf

from tff_reg import models, runtime, training

L = tf.keras.layers


def _keras_network(num_classes=3):
    # Seeds, because models of the same function must be the same.
    def seeded(seed):
        return tf.keras.initializers.GlorotUniform(seed)

    return models.from_keras_blocks(
        [
            [
                L.Conv2D(8, 3, activation="relu", kernel_initializer=seeded(1)),
                L.BatchNormalization(),
            ],
            [L.Flatten(), L.Dense(num_classes, kernel_initializer=seeded(2))],
        ],
        input_shape=(6, 6, 1),
    )


def _network(name="cnn", num_classes=3, **options):
    if name == "keras":
        return _keras_network(num_classes)
    model_fn = models.build_model_fn(
        name, image_shape=(6, 6, 1), num_classes=num_classes, **options
    )
    return model_fn().network


def _frozen_model_fn(name, initialization):
    def model_fn():
        network = _network(name)
        network.freeze_classifier(initialization)
        return models.LearningModel(network)

    return model_fn


def _images(count=4):
    values = np.random.default_rng(0).normal(size=(count, 6, 6, 1))
    return tf.constant(values, tf.float32)


def _names(variables):
    return [v.name for v in variables]


NETWORKS = ["cnn", "resnet8", "keras"]


@pytest.mark.parametrize("initialization", ["plain", "orthogonal"])
@pytest.mark.parametrize("name", NETWORKS)
def test_its_variables_move_to_the_non_trainable_ones(name, initialization):
    network = _network(name)
    bias = network.blocks[-1].linear_layer.bias
    bias.assign(tf.ones_like(bias))
    trainable = _names(network.trainable_variables)
    fixed = _names(network.non_trainable_variables)
    before = network(_images(), models.ForwardPass()).logits
    network.freeze_classifier(initialization)
    assert _names(network.trainable_variables) == trainable[:-2]
    assert _names(network.non_trainable_variables) == fixed + trainable[-2:]
    same = np.array_equal(network(_images(), models.ForwardPass()).logits, before)
    assert same == (initialization == "plain")
    with pytest.raises(ValueError, match="frozen already"):
        network.freeze_classifier(initialization)


@pytest.mark.parametrize("name", NETWORKS)
def test_orthogonal_class_vectors_are_orthonormal(name):
    network = _network(name)
    network.seed = 5
    network.freeze_classifier("orthogonal")
    kernel, bias = network.non_trainable_variables[-2:]
    np.testing.assert_allclose(tf.transpose(kernel) @ kernel, np.eye(3), atol=1e-6)
    assert not bias.numpy().any()
    again, other = _network(name), _network(name)
    again.seed, other.seed = 5, 6
    again.freeze_classifier("orthogonal")
    other.freeze_classifier("orthogonal")
    np.testing.assert_array_equal(again.non_trainable_variables[-2], kernel)
    assert not np.array_equal(other.non_trainable_variables[-2], kernel)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float64", 1e-13)])
def test_with_more_classes_than_features_the_rows_are(dtype, tolerance):
    network = _network("resnet8", num_classes=70, dtype=dtype)
    network.freeze_classifier("orthogonal")
    kernel = network.blocks[-1].linear_layer.kernel.numpy()
    assert kernel.shape == (64, 70) and kernel.dtype == dtype
    np.testing.assert_allclose(kernel @ kernel.T, np.eye(64), atol=tolerance)


@pytest.mark.parametrize("initialization", ["plain", "orthogonal"])
@pytest.mark.parametrize("name", NETWORKS)
def test_graphs_initialise_it_as_eager_models_do(name, initialization):
    model_fn = _frozen_model_fn(name, initialization)
    weights = models.initial_weights(model_fn)
    model = model_fn()
    eager = [model.trainable_variables, model.non_trainable_variables]
    for got, expected in zip([weights.trainable, weights.non_trainable], eager):
        assert len(got) == len(expected)
        for one, other in zip(got, expected):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    # Unlike a zero-initialised or an unfrozen one.
    assert weights.non_trainable[-2].shape == expected[-2].shape
    assert np.linalg.norm(weights.non_trainable[-2]) > 0.1


def test_plain_keeps_unseeded_weights_in_graphs():
    with tf.Graph().as_default():
        network = models.from_keras_blocks(
            [L.Flatten(), L.Dense(3)], input_shape=(2, 2)
        )
        old = list(network.trainable_variables)
        network.freeze_classifier()
        new = network.non_trainable_variables
        with tf.compat.v1.Session() as session:
            session.run([v.initializer for v in [*old, *new]])
            old, new = session.run([old, new])
    for one, other in zip(old, new):
        np.testing.assert_array_equal(one, other)
    assert np.ptp(new[0]) > 0


@pytest.mark.parametrize("name", ["cnn", "keras"])
def test_a_round_of_training_leaves_it_as_it_is(name):
    process = training.build_regularized(
        _frozen_model_fn(name, "orthogonal"), [], training.build_sgd(0.1, 0.9)
    )
    batch = collections.OrderedDict(x=_images(), y=tf.constant([0, 1, 2, 1]))
    data = tf.data.Dataset.from_tensors(batch).repeat(2)
    with runtime.running("in_process"):
        state = process.initialize()
        before = process.get_model_weights(state)
        after = process.get_model_weights(process.next(state, [data, data]).state)
    kernel, bias = after.non_trainable[-2:]
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(3), atol=1e-6)
    np.testing.assert_array_equal(kernel, before.non_trainable[-2])
    np.testing.assert_array_equal(bias, np.zeros(3))
    assert np.abs(after.trainable[0] - before.trainable[0]).max() > 1e-4


def test_classifiers_without_a_kernel_say_so():
    pooled = models.from_keras_blocks(
        [L.Conv2D(3, 3), L.GlobalAveragePooling2D()], input_shape=(6, 6, 1)
    )
    with pytest.raises(models.MissingCapabilityError, match="unknown.*no linear layer"):
        pooled.freeze_classifier()
