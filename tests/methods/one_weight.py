"""Where a client with one weight stands, for formulae by hand.

w = 3, cloud = 1, h_i = 0.5, s_i = 0.25, s = 2, wt_i = 4, K lr0 = 0.8.
"""

import dataclasses

import pytest
import tensorflow as tf

from tff_reg.methods import method


def local(**changes):
    """The `Local`, with changes."""
    fields = {
        "weights": [3.0],
        "start": [1.0],
        "global_weights": [1.0],
        "memory": {"h": [0.5], "s": [0.25]},
        "server_memory": {"s": [2.0]},
        "relative_size": tf.constant(4.0, tf.float64),
        "step_size": tf.constant(0.8, tf.float64),
        **changes,
    }
    return method.Local(**fields)


def perturbation(one, local, gradient):
    """Where a method takes the last gradient of a client's first step."""
    local = dataclasses.replace(local, state=one.begin(local))
    return perturbation_then(one, local, gradient)


def perturbation_then(one, local, gradient):
    """As `perturbation`, in a later step: the client has its state."""
    asked = []

    def gradient_at(perturbation=None, loss=None):
        del loss
        asked.append(perturbation)
        return gradient

    one.gradient(local, gradient_at)
    return asked[-1]


def assert_adds(correct, expected):
    """What a method's `correct` or `correct_clipped` adds to the gradient."""
    for gradient in (0.0, 7.0):
        corrected = correct(local(), [tf.constant(gradient, tf.float64)])
        assert_value(corrected, gradient + expected)


def assert_value(tensors, expected):
    """The one tensor has the value."""
    (tensor,) = tensors
    assert float(tensor) == pytest.approx(float(expected), rel=1e-12)
