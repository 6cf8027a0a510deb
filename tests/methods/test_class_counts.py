"""What is true of all methods that need a client's class counts."""

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import linear
from tff_reg import methods, models, training
from tff_reg.models import learning_model

pytestmark = pytest.mark.usefixtures("in_process")

CLASSES = linear.CLASSES
# One that lacks a class, and one that has only one.
LABELS = [np.array([0, 0, 2, 2, 0], np.int32), np.full(6, 1, np.int32)]
METHODS = [
    methods.FedLC(strength=0.5),
    methods.FedRS(factor=0.3),
    methods.FedRS(factor=0.3, scaling="frequency"),
    methods.FedETF(scaling=2.0),
]


def _model_fn():
    """A linear model, always the same, whose loss is the cross-entropy."""
    seeded = tf.keras.initializers.GlorotUniform(1)
    network = models.from_keras_blocks(
        [
            tf.keras.layers.Flatten(dtype="float64"),
            tf.keras.layers.Dense(CLASSES, kernel_initializer=seeded, dtype="float64"),
        ],
        input_shape=[linear.FEATURES],
    )
    return models.LearningModel(network)


def _trained(method, features, labels, repeats):
    """A client's weights after two steps on all of its examples, counted so often."""
    model = training.adapt_model_fn(_model_fn, [method])()
    variables = model.trainable_variables
    counts = tf.constant(repeats * np.bincount(labels, minlength=CLASSES), tf.int32)
    for _ in range(2):
        with tf.GradientTape() as tape:
            logits = model.network(features, models.ForwardPass(training=True)).logits
            changed = method.change_logits(logits, counts)
            loss = learning_model.sparse_cross_entropy(labels, changed)
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(linear.RATE * gradient)
    return [v.numpy() for v in variables]


def _batched(features, labels):
    element = {"x": features, "y": labels}
    return tf.data.Dataset.from_tensor_slices(element).batch(8).repeat(2)


_FORMS = {
    "whole": (
        linear.whole,
        training.WholeClientData(batch_size=8, local_epochs=2, shuffle=False),
        1,
    ),
    # Which has every example twice.
    "batched": (_batched, training.BatchedData(), 2),
}


@pytest.mark.parametrize(
    "method, form",
    [(METHODS[0], "whole"), (METHODS[0], "batched")]
    + [(method, "whole") for method in METHODS[1:]],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_class_that_is_lacking_a_single_class_and_no_class_at_all(method, form):
    make, client_data, repeats = _FORMS[form]
    process = linear.build(
        method, make_model=_model_fn, client_data=client_data, population=None
    )
    clients = [
        (linear.examples(seed, len(labels))[0], labels)
        for seed, labels in enumerate(LABELS)
    ]
    nobody = (np.zeros([0, linear.FEATURES]), np.zeros([0], np.int32))
    state = process.initialize()
    output = process.next(state, [make(*own) for own in (*clients, nobody)])
    ends = [_trained(method, *own, repeats) for own in clients]
    expected = [np.mean(both, axis=0) for both in zip(*ends)]
    linear.assert_close(linear.weights_of(process, output.state), expected)
    assert all(np.isfinite(value).all() for value in expected)
    measured = output.metrics["client_work"]["train"]
    assert measured["rejected_clients"] == 0
