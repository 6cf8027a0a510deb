import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import models, runtime
from tff_reg.lazy import keras
from tff_reg.models import learning_model

MODEL_FN = models.build_model_fn("cnn", image_shape=(6, 6, 1), num_classes=3, seed=4)


def _batch(count=5):
    rng = np.random.default_rng(0)
    return collections.OrderedDict(
        x=tf.constant(rng.normal(size=(count, 6, 6, 1)), tf.float32),
        y=tf.constant(rng.integers(0, 3, count), tf.int32),
    )


def test_metrics_are_means_over_examples_of_all_batches():
    model = MODEL_FN()
    small, large = _batch(2), _batch(5)
    losses = [model.forward_pass(b, training=False).loss for b in (small, large)]
    finalizers = model.metric_finalizers()
    values = {
        name: finalizers[name](value)
        for name, value in model.report_local_unfinalized_metrics().items()
    }
    np.testing.assert_allclose(values["loss"], (2 * losses[0] + 5 * losses[1]) / 7)
    assert values["num_examples"] == 7
    correct = sum(
        np.sum(np.argmax(model.predict_on_batch(b["x"], False), -1) == b["y"])
        for b in (small, large)
    )
    np.testing.assert_allclose(values["accuracy"], correct / 7)
    model.reset_metrics()
    assert all(not v.numpy() for v in model.local_variables)
    empty = learning_model.sparse_cross_entropy(np.zeros(0, int), np.zeros((0, 3)))
    assert empty == 0.0


def test_what_is_no_number_predicts_nothing():
    """Not the first class, in training and in a federated evaluation."""
    model = MODEL_FN()
    labels = tf.constant([0, 0, 1, 2], tf.int32)
    logits = [[np.nan] * 3, [2.0, 1.0, np.nan], [0.0, 1.0, -np.inf], [1.0, 0.0, 0.0]]
    model.update_metrics(labels, tf.constant(logits, tf.float32), tf.constant(1.0))
    correct, count = model.report_local_unfinalized_metrics()["accuracy"]
    assert (correct, count) == (1.0, 4.0)


@pytest.mark.parametrize("name", ["cnn", "vgg9"])
def test_initial_weights_follow_the_seed(name):
    def build(seed):
        options = dict(image_shape=(8, 8, 1), num_classes=3, seed=seed)
        return models.build_model_fn(name, **options)

    first = models.initial_weights(build(4))
    again = models.initial_weights(build(4))
    other = models.initial_weights(build(5))
    eager = [v.numpy() for v in build(4)().trainable_variables]
    for a, b, c in zip(first.trainable, again.trainable, eager):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert not np.array_equal(first.trainable[0], other.trainable[0])


def test_tffs_own_processes_take_it():
    process = tff.learning.algorithms.build_weighted_fed_avg(
        MODEL_FN, tff.learning.optimizers.build_sgdm(0.1)
    )
    data = tf.data.Dataset.from_tensors(_batch())
    with runtime.running("in_process"):
        output = process.next(process.initialize(), [data, data])
    train = output.metrics["client_work"]["train"]
    assert train["num_examples"] == 10
    assert 0.0 < train["loss"] < 10.0


@pytest.mark.parametrize(
    "dtypes, message",
    [
        (("mixed_float16",) * 2, "computes in float16"),
        (("mixed_bfloat16", "float32"), "computes in bfloat16"),
        (("float32", "float64"), "float32 and float64: give"),
        (("float16",) * 2, "float16: give all layers the same dtype"),
        (("float64",) * 2, None),
    ],
)
def test_layers_of_mixed_precision_are_refused(dtypes, message):
    made = [keras.layers.Dense(2, dtype=dtype) for dtype in dtypes]
    if message is None:
        network = models.from_keras_blocks(made, input_shape=(3,))
        learning_model.check_model(models.LearningModel(network))
    else:
        with pytest.raises(ValueError, match=message):
            models.from_keras_blocks(made, input_shape=(3,))
