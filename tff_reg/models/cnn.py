"""A small convolutional network: quick to train, with everything methods ask for."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from tff_reg.models import block_model, conv_units, layers


def _pool(x):
    # 'SAME' keeps images of odd size, down to a single pixel, usable.
    return tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")


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
      norm: 'group', 'batch', or 'none' for convolutions with biases.
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
        convolution = functools.partial(
            layers.Conv2D,
            in_channels,
            out_channels,
            3,
            seeds,
            padding=1,
            use_bias=norm == "none",
        )
        blocks.append(
            conv_units.ConvUnit(
                convolution,
                out_channels,
                norm=norm,
                pool=_pool,
                name=f"conv{number}",
                dtype=dtype,
            )
        )
        in_channels = out_channels
        height, width = (height + 1) // 2, (width + 1) // 2
    blocks.append(
        conv_units.HiddenLayersClassifier(
            height * width * in_channels,
            (hidden,),
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
        has_independent_examples=norm != "batch",
        dtype=dtype,
        seed=seed,
    )
