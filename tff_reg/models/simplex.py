"""A classifier whose classes are the corners of a simplex, maximally far apart."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tff_reg.models import initial, layers


class SimplexClassifier(layers.ForwardLayer):
    """A linear layer whose normalised outputs f are compared with fixed directions.

    The logits are g f'M, where g is a trained scalar. M is a variable that is not
    trained: the classes' directions, an equiangular tight frame.
    """

    def make(
        self,
        features: int,
        num_classes: int,
        dimensions: int,
        scaling: float,
        *,
        seed: int,
    ):
        if dimensions < num_classes:
            raise ValueError(
                f"{num_classes} classes need at least as many dimensions, but there "
                f"are {dimensions}."
            )
        uniform = np.random.default_rng(seed).random((dimensions, num_classes))
        self.dense = layers.Dense(
            features, dimensions, layers.Seeds(seed), name="dense", dtype=self.dtype
        )
        self.scaling = self.add_weight("scaling", (1,), initial.constant(scaling))
        self.directions = self.add_weight(
            "directions",
            (dimensions, num_classes),
            initial.constant(frame(uniform)),
            trainable=False,
        )

    def call(self, x, forward: layers.ForwardPass):
        outputs = self.dense(x, forward)
        return logits(outputs, self.directions, self.scaling)


def frame(matrix: np.ndarray) -> np.ndarray:
    """Returns directions of equal angles: sqrt(C / (C - 1)) P (I - 11' / C)."""
    classes = matrix.shape[1]
    columns, _ = np.linalg.qr(matrix)
    centred = np.eye(classes) - 1 / classes
    # A single class has no direction.
    return np.sqrt(classes / max(classes - 1, 1)) * columns @ centred


def logits(outputs, directions, scaling):
    """Computes g f'M, where f is the outputs scaled to length 1."""
    # Divides by at least 1e-12, as PyTorch does.
    unit = tf.math.l2_normalize(outputs, axis=-1, epsilon=1e-24)
    return scaling * tf.linalg.matmul(unit, directions)
