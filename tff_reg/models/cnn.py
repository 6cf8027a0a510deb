"""A small convolutional network: quick to train, with everything methods ask for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tff_reg.models import block_model, conv_units

# Output channels of the convolutions; units of the hidden layer.
_CHANNELS, _HIDDEN = (32, 64), 128


def _pool(x):
    # 'SAME' keeps images of odd size, down to a single pixel, usable.
    return tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")


def cnn(
    *,
    input_shape: Sequence[int],
    norm: str = "group",
    **options: Any,
) -> block_model.BlockModel:
    """Builds a small CNN: two convolutions with pooling, one hidden layer.

    Args:
      input_shape: (height, width, channels) of an image; any size and channels.
      norm: 'group', 'batch', or 'none' for convolutions with biases.
      **options: The others of `conv_units.build`.

    Returns:
      A `BlockModel` with the blocks conv1, conv2 and classifier. Its flattened
      features cannot be cut to a fraction of their width.
    """
    height, width, _ = input_shape
    for _ in _CHANNELS:
        height, width = (height + 1) // 2, (width + 1) // 2
    features = height * width * _CHANNELS[-1]
    return conv_units.build(
        [conv_units.Convolution(c, 3, padding=1, pool=_pool) for c in _CHANNELS],
        functools.partial(conv_units.HiddenLayersClassifier, features, (_HIDDEN,)),
        input_shape=input_shape,
        norm=norm,
        use_bias=norm == "none",
        **options,
    )
