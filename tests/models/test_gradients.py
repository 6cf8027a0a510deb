"""Custom gradients are TensorFlow's, and go with their graphs."""

import gc
import weakref

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from tff_reg.models import gradients


@gradients.custom_gradient
def cube(x):
    """x^3, with ten times the first and a hundred times the second derivative."""

    @gradients.custom_gradient
    def gradient(x, upstream):
        def second(upstream_of_second):
            return 600 * x * upstream * upstream_of_second, None

        return 30 * x**2 * upstream, second

    return x**3, lambda upstream: gradient(x, upstream)


def derivatives(x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cube(x)
        first = inner.gradient(y, x)
    return y, first, outer.gradient(first, x)


def test_eagerly_and_in_a_function_of_any_order():
    x = tf.constant(2.0)
    np.testing.assert_allclose(derivatives(x), [8, 120, 1200])
    np.testing.assert_allclose(tf.function(derivatives)(x), [8, 120, 1200])


def test_a_function_that_is_alive_has_its_gradient_later_and_in_a_loop():
    @tf.function
    def function(x):
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, cube(y)), (0, x))[
            1
        ]

    x = tf.constant(1.0)
    function(x)
    gc.collect()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert float(tape.gradient(y, x)) == 900


def test_a_graph_goes_and_takes_its_gradients_with_it():
    gc.collect()  # Other tests' graphs.
    names = set(ops.gradient_registry.list())
    with tf.Graph().as_default() as graph:
        x = tf.constant(2.0)
        (slope,) = tf.gradients(cube(x), x)
        with tf.compat.v1.Session() as session:
            assert session.run(slope) == 120
    assert len(ops.gradient_registry.list()) == len(names) + 2
    reference = weakref.ref(graph)
    del graph, x, slope, session
    gc.collect()
    assert reference() is None
    assert set(ops.gradient_registry.list()) == names
