"""A convolution with what comes after it, and hidden layers: parts of plain CNNs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

import tensorflow as tf

from tff_reg.models import block_model, classifiers, layers

ForwardPass = layers.ForwardPass


class ConvUnit(block_model.Block):
    """A convolution, an optional norm, an optional non-linearity, optional pooling.

    Args:
      convolution: Makes the convolution, given its `name` and `dtype`.
      channels: Its output channels.
      norm: 'group', 'batch' or 'none'.
      groups: Of group normalisation.
      activation: The non-linearity, whose output is recorded; None for none.
      pool: Function of the activation, or None.
      name: Prefix of the variables' names.
      dtype: 'float32' or 'float64'.
    """

    def __init__(
        self,
        convolution: Callable,
        channels: int,
        *,
        norm: str,
        groups: int = 2,
        activation: Optional[Callable] = tf.nn.relu,
        pool: Optional[Callable] = None,
        name: str,
        dtype: str,
    ):
        super().__init__(name=name, dtype=dtype)
        self._activation = activation
        self._pool = pool
        self.norm = None
        with tf.name_scope(name):
            self.conv = convolution(name="conv", dtype=dtype)
            if norm != "none":
                self.norm = layers.build_norm(
                    norm, channels, groups=groups, name="norm", dtype=dtype
                )
        self.built = True

    def call(self, x, forward: ForwardPass):
        x = self.conv(x, forward)
        if self.norm is not None:
            x = self.norm(x, forward)
        if self._activation is not None:
            x = forward.record(self._activation(x))
        return x if self._pool is None else self._pool(x)


class HiddenLayersClassifier(classifiers.LinearClassifier):
    """Flattening, hidden layers with ReLU, and a linear layer.

    The last hidden layer gives the features. Flattened, the channels of one position
    lie next to each other; in PyTorch, the positions of one channel.

    Args:
      features: Numbers of an example once flattened.
      hidden: Units of the hidden layers.
      num_classes: Number of logits.
      projector: 'none', 'moon' or 'univarfl' (see `classifiers`).
      seeds: Where the initialisers' seeds come from.
      name: Prefix of the variables' names.
      dtype: 'float32' or 'float64'.
    """

    def __init__(
        self,
        features: int,
        hidden: Sequence[int],
        num_classes: int,
        *,
        projector: str,
        seeds: layers.Seeds,
        name: str,
        dtype: str,
    ):
        super().__init__(name=name, dtype=dtype)
        self.hidden = []
        with tf.name_scope(name):
            for number, units in enumerate(hidden, start=1):
                layer_name = f"hidden{number}" if len(hidden) > 1 else "hidden"
                self.hidden.append(
                    layers.Dense(features, units, seeds, name=layer_name, dtype=dtype)
                )
                features = units
            self.add_head(features, num_classes, projector=projector, seeds=seeds)
        self.built = True

    def extract(self, x, forward: ForwardPass):
        features = x.shape[1:].num_elements()
        if features != self.hidden[0].kernel.shape[0]:
            raise block_model.MissingCapabilityError(
                "This model flattens its features, so it takes images of one size "
                f"only, but they came as {x.shape}, not "
                f"{self.hidden[0].kernel.shape[0]} numbers an image. Take a model that "
                "pools, for example 'resnet8'."
            )
        x = tf.reshape(x, shape=[-1, features])
        for layer in self.hidden:
            x = forward.record(tf.nn.relu(layer(x, forward)))
        return x
