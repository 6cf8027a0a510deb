import numpy as np
import pytest
import tensorflow as tf

from tests.training import every_method
from tff_reg import methods, models
from tff_reg.training import adaptation


def test_the_model_gets_a_simplex_for_its_classifier():
    plain = every_method.model_fn()
    model = adaptation.adapt_model_fn(
        every_method.model_fn, [methods.FedETF(scaling=3.0, dimensions=5)]
    )()
    network = model.network
    names = [v.name for v in network.trainable_variables]
    assert names[:-3] == [v.name for v in plain.network.trainable_variables[:-2]]
    scaling, kernel, bias = network.trainable_variables[-3:]
    assert kernel.shape == [32, 5] and bias.shape == [5]
    np.testing.assert_array_equal(scaling, [3.0])
    directions = network.non_trainable_variables[-1]
    assert directions.shape == [5, 3]
    image = tf.random.stateless_normal([2, 4, 4, 1], [1, 2])
    outputs = network(image, models.ForwardPass(training=False))
    f = outputs.embedding.numpy() @ kernel.numpy() + bias.numpy()
    f /= np.linalg.norm(f, axis=1, keepdims=True)
    expected = 3 * f @ directions.numpy()
    np.testing.assert_allclose(outputs.logits, expected, rtol=1e-5, atol=1e-6)


def test_every_model_that_is_made_has_the_same_directions():
    make = adaptation.adapt_model_fn(every_method.model_fn, [methods.FedETF()])
    first, second = (make().network.non_trainable_variables[-1] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_fewer_dimensions_than_classes_are_refused():
    fedetf = methods.FedETF(dimensions=2)
    with pytest.raises(ValueError, match="3 classes need at least as many dimensions"):
        fedetf.adapt_network(every_method.build_network())
