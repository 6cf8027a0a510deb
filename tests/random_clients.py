"""Clients of random images and labels, for tests of whole processes."""

import collections

import numpy as np
import tensorflow as tf


def client(seed, count, *, size=4, dtype="float32"):
    """All examples of a client as one element: grey squares, three classes, a key."""
    rng = np.random.default_rng(seed)
    return tf.data.Dataset.from_tensors(
        collections.OrderedDict(
            x=rng.normal(size=(count, size, size, 1)).astype(dtype),
            y=rng.integers(0, 3, count).astype(np.int32),
            key=np.array([seed, 1], np.int64),
        )
    )


def clients(counts, **options):
    """A client for each number of examples."""
    return [client(seed, count, **options) for seed, count in enumerate(counts)]
