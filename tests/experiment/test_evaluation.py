import collections
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_reg import data as data_lib, experiment, models
from tff_reg.experiment.rounds import evaluation
from tff_reg.lazy import keras


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(3)
    x = generator.integers(0, 255, size=[23, 8, 8, 1]).astype(np.uint8)
    return x, generator.integers(0, 4, size=[23]).astype(np.int32)


@pytest.fixture(scope="module")
def model_fn():
    return models.build_model_fn(
        "cnn", image_shape=(8, 8, 1), num_classes=4, norm="batch"
    )


def scale(images):
    return tf.cast(images, tf.float32) / 255


def random_weights(model_fn, seed):
    generator = np.random.default_rng(seed)
    weights = tff.learning.models.ModelWeights.from_model(model_fn())

    def draw(variable):
        return generator.uniform(0.1, 1.0, variable.shape).astype(np.float32) - (
            0.0 if "moving" in variable.name else 0.5
        )

    return tff.learning.models.ModelWeights(
        [draw(v) for v in weights.trainable], [draw(v) for v in weights.non_trainable]
    )


def test_means_over_examples_are_exact_whatever_the_batch_size(model_fn, data):
    x, y = data
    weights = random_weights(model_fn, 1)
    model = model_fn()
    weights.assign_weights_to(model)
    logits = model.predict_on_batch(scale(x), training=False).numpy()
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits).numpy()
    for batch_size in (1, 5, 23, 100):
        evaluate = experiment.CentralEvaluation(
            model_fn,
            x,
            y,
            preprocess_fn=scale,
            batch_size=batch_size,
            subsets={"few_shot": y < 2},
        )
        result = evaluate(weights)
        few = (logits.argmax(-1) == y)[y < 2].mean()
        assert result["few_shot/accuracy"] == few
        assert result["accuracy"] == np.mean(logits.argmax(-1) == y)
        np.testing.assert_allclose(result["loss"], losses.mean(), rtol=1e-5)


def test_the_digest_is_of_examples_and_subsets(model_fn, data):
    x, y = data
    found = set()
    for masks in ({}, {"a": y < 2}, {"a": y < 1}, {"b": y < 1}):
        evaluate = experiment.CentralEvaluation(model_fn, x, y, subsets=masks)
        found.add(evaluate.digests["test_examples"])
    assert len(found) == 4


def test_classes_are_large_by_what_the_clients_train_on():
    y = np.repeat([0, 1, 2], [150, 30, 30]).astype(np.int32)
    task = types.SimpleNamespace(
        client_data=data_lib.ArrayClientData(
            np.zeros([210, 1], np.float32), y, [np.arange(150), np.arange(120, 170)]
        ),
        train_labels=y,
        test_arrays=lambda: (None, np.array([2, 1, 0])),
    )
    masks = evaluation.subsets_of(task, has_tail=True)
    found = {name: [*mask] for name, mask in masks.items()}
    assert found == {
        "many_shot": [False, False, True],
        "medium_shot": [False, True, False],
        "few_shot": [True, False, False],
    }


def test_what_is_no_number_predicts_nothing(model_fn, data):
    """Not the first class, whose share would be the accuracy of a model of NaNs."""
    x, y = data
    assert np.mean(y == 0) > 0
    evaluate = experiment.CentralEvaluation(model_fn, x, y, preprocess_fn=scale)
    weights = random_weights(model_fn, 1)
    weights.trainable[-1][...] = np.nan
    assert evaluate(weights)["accuracy"] == 0.0
    # One class that is no number is enough.
    weights.trainable[-1][...] = [0.0, 0.0, 0.0, np.nan]
    assert evaluate(weights)["accuracy"] == 0.0


def test_batch_norm_uses_and_keeps_its_moving_statistics(model_fn, data):
    x, y = data
    evaluate = experiment.CentralEvaluation(model_fn, x, y, preprocess_fn=scale)
    weights = random_weights(model_fn, 1)
    first = evaluate(weights)
    assert evaluate(weights) == first
    others = tff.learning.models.ModelWeights(
        weights.trainable, [2 * value for value in weights.non_trainable]
    )
    assert evaluate(others) != first


def test_the_forward_pass_is_traced_once(model_fn, data):
    x, y = data
    traces = []

    def count(images):
        traces.append(images)
        return scale(images)

    evaluate = experiment.CentralEvaluation(
        model_fn, x, y, preprocess_fn=count, batch_size=10
    )
    for seed in range(3):
        evaluate(random_weights(model_fn, seed))
    assert len(traces) == 1


def test_names_of_weights_are_unique_and_in_order(model_fn, data):
    evaluate = experiment.CentralEvaluation(model_fn, *data, preprocess_fn=scale)
    trainable, others = evaluate.weight_names
    model = model_fn()
    assert len(set(trainable + others)) == len(trainable) + len(others)
    assert trainable == [v.name.split(":")[0] for v in model.trainable_variables]
    assert evaluate.num_weights == sum(
        int(tf.size(v)) for v in model.trainable_variables
    )


def test_a_test_set_without_examples_or_labels_is_refused(model_fn, data):
    x, y = data
    for bad_x, bad_y in ((x[:0], y[:0]), (x, y[:-1])):
        with pytest.raises(ValueError, match="one label an example"):
            experiment.CentralEvaluation(model_fn, bad_x, bad_y)
    broken = np.where(np.arange(len(y)) == 3, np.nan, x.T).T
    with pytest.raises(ValueError, match="test set have .* in 1 of"):
        experiment.CentralEvaluation(model_fn, broken.astype(np.float32), y)


def test_a_keras_model_is_refused_with_a_sentence(data):
    def model_fn():
        return keras.Sequential([keras.layers.Dense(4, input_shape=(3,))])

    with pytest.raises(
        TypeError, match="model_fn returned a Sequential; it must return"
    ):
        experiment.CentralEvaluation(model_fn, *data)
    with pytest.raises(
        TypeError, match="model_fn is a Sequential; tff_reg.models.from_keras"
    ):
        experiment.CentralEvaluation(model_fn(), *data)
    with pytest.raises(TypeError, match="takes a BlockModel, not a Sequential: tff_r"):
        models.LearningModel(model_fn())


@pytest.mark.parametrize("outputs", [1, 3])
def test_only_a_model_with_an_output_per_class_has_an_accuracy(outputs):
    """The largest of one number would always be the first."""

    def model_fn():
        inner = keras.Sequential([keras.layers.Dense(outputs, input_shape=(4,))])
        spec = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1], tf.int32))
        loss = keras.losses.MeanSquaredError()
        return tff.learning.models.from_keras_model(
            inner, loss, collections.OrderedDict(x=spec[0], y=spec[1])
        )

    x, y = np.ones((6, 4), np.float32), np.zeros((6, 1), np.int32)
    evaluate = experiment.CentralEvaluation(model_fn, x, y)
    weights = tff.learning.models.ModelWeights.from_model(model_fn())
    assert ("accuracy" in evaluate(weights)) == (outputs == 3)
