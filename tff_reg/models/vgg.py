"""VGG-9, a backbone of the FedMLB paper (Table 9).

Six 3x3 convolutions with biases, of 32, 64, 128, 128, 256 and 256 channels, each with a
norm and ReLU, every second one with 2x2 max-pooling; then averages over 4x4 windows,
two hidden layers of 512 units, and a linear layer (Simonyan and Zisserman, ICLR 2015,
as cut down for CIFAR by FedMA). Without a norm and with 10 classes it has FedMA's
3,491,530 parameters.

FedMLB's public code has only ResNet-18. This is the VGG-9 that the same group
published with FedACG (CVPR 2024): GroupNorm of two groups after every convolution and
no dropout, with FedMLB's cut into M = 7 blocks: every convolution, and the classifier
with the hidden layers. Convolutions are initialised as there, normally with variance
2 / (9 output channels) and with zero biases, linear layers as PyTorch does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tff_reg.models import block_model, conv_units, layers, pooling

ForwardPass = layers.ForwardPass

_CHANNELS = (32, 64, 128, 128, 256, 256)
_HIDDEN = (512, 512)
# Rows and columns that the classifier flattens.
_SIDE = 4
_MINIMUM_SIDE = 8


class VGGClassifier(conv_units.HiddenLayersClassifier):
    """Pooling to a fixed size, hidden layers with ReLU, and a linear layer."""

    def extract(self, x, forward: ForwardPass):
        return super().extract(pooling.adaptive_average_pool(x, _SIDE, _SIDE), forward)


def vgg9(
    *, input_shape: Sequence[int], norm: str = "group", **options: Any
) -> block_model.BlockModel:
    """Builds VGG-9.

    Args:
      input_shape: (height, width, channels) of an image, from 8x8.
      norm: 'group', 'batch' or 'none', after every convolution.
      **options: The others of `conv_units.build`.

    Returns:
      A `BlockModel` with the blocks conv1, ..., conv6, classifier. It cannot run at a
      fraction of its width.

    Raises:
      block_model.ImageSizeError: If the images are smaller than 8x8.
    """
    block_model.check_image_size("vgg9", input_shape, _MINIMUM_SIDE)
    pool = functools.partial(pooling.max_pool, size=2, stride=2)
    return conv_units.build(
        [
            conv_units.Convolution(
                channels, 3, padding=1, pool=pool if number % 2 == 0 else None
            )
            for number, channels in enumerate(_CHANNELS, start=1)
        ],
        functools.partial(VGGClassifier, _CHANNELS[-1] * _SIDE**2, _HIDDEN),
        input_shape=input_shape,
        norm=norm,
        use_bias=True,
        bias_initializer=layers.zero_bias,
        **options,
    )
