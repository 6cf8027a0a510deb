"""A small convolutional network: quick to train, with everything methods ask for."""

from __future__ import annotations

from typing import Sequence

import tensorflow as tf

from tff_reg.models import block_model
from tff_reg.models import classifiers
from tff_reg.models import layers

ForwardPass = layers.ForwardPass


class ConvBlock(block_model.Block):
    """A 3x3 convolution, an optional norm, ReLU, and 2x2 max-pooling."""

    def __init__(self, in_channels, channels, *, norm, seeds, name, dtype):
        super().__init__(name=name, dtype=dtype)
        self.norm = None
        with tf.name_scope(name):
            self.conv = layers.Conv2D(
                in_channels,
                channels,
                3,
                seeds,
                padding=1,
                use_bias=norm is None,
                name="conv",
                dtype=dtype,
            )
            if norm is not None:
                self.norm = layers.build_norm(norm, channels, name="norm", dtype=dtype)
        self.built = True

    def call(self, x, forward: ForwardPass):
        x = self.conv(x, forward)
        if self.norm is not None:
            x = self.norm(x, forward)
        x = forward.record(tf.nn.relu(x))
        # 'SAME' keeps images of odd size, down to a single pixel, usable.
        return tf.nn.max_pool2d(x, 2, 2, "SAME")


class HiddenLayerClassifier(classifiers.LinearClassifier):
    """Flattening, a hidden layer with ReLU (the features), and a linear layer."""

    def __init__(self, features, hidden, num_classes, *, projector, seeds, name, dtype):
        super().__init__(name=name, dtype=dtype)
        with tf.name_scope(name):
            self.hidden = layers.Dense(
                features, hidden, seeds, name="hidden", dtype=dtype
            )
            self.add_head(hidden, num_classes, projector=projector, seeds=seeds)
        self.built = True

    def extract(self, x, forward: ForwardPass):
        features = x.shape[1:].num_elements()
        if features != self.hidden.kernel.shape[0]:
            raise block_model.MissingCapabilityError(
                "This model flattens its features, so it takes images of one size "
                f"only, but they came as {x.shape}, not "
                f"{self.hidden.kernel.shape[0]} numbers an image. Take a model that "
                "pools, for example 'resnet8'."
            )
        x = tf.reshape(x, [-1, features])
        return forward.record(tf.nn.relu(self.hidden(x, forward)))


def cnn(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    norm: str = "group",
    projector: str = "none",
    seed: int = 0,
    dtype: str = "float32",
    channels: Sequence[int] = (32, 64),
    hidden: int = 128,
) -> block_model.BlockModel:
    """Builds a small CNN: two convolutions with pooling, one hidden layer.

    Args:
      input_shape: (height, width, channels) of an image; any size and channels.
      num_classes: Number of logits.
      norm: 'group', 'batch', or None for convolutions with biases.
      projector: 'none', 'moon' or 'univarfl' (see `classifiers`).
      seed: Seed of the initial weights.
      dtype: 'float32' or 'float64'.
      channels: Output channels of the convolutions.
      hidden: Units of the hidden layer.

    Returns:
      A `BlockModel` with the blocks conv1, conv2, ..., classifier. Its flattened
      features cannot be cut to a fraction of their width.
    """
    seeds = layers.Seeds(seed)
    height, width, in_channels = input_shape
    blocks = []
    for number, out_channels in enumerate(channels, start=1):
        blocks.append(
            ConvBlock(
                in_channels,
                out_channels,
                norm=norm,
                seeds=seeds,
                name=f"conv{number}",
                dtype=dtype,
            )
        )
        in_channels = out_channels
        height, width = (height + 1) // 2, (width + 1) // 2
    blocks.append(
        HiddenLayerClassifier(
            height * width * in_channels,
            hidden,
            num_classes,
            projector=projector,
            seeds=seeds,
            name="classifier",
            dtype=dtype,
        )
    )
    return block_model.BlockModel(
        blocks,
        input_shape=input_shape,
        num_classes=num_classes,
        dtype=dtype,
        seed=seed,
    )
