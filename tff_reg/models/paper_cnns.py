"""The small CNNs of the MAN, UniVarFL and FedUV papers.

* `feddyn_cnn`: FedDyn's network for CIFAR, which the MAN paper uses: two 5x5
  convolutions of 64 channels without padding, each followed by ReLU and 2x2
  max-pooling, hidden layers of 384 and 192 units, no norm (797,962 parameters with 10
  classes and images of 32x32x3).
* `man_convnet`: the MAN authors' ConvNet for Tiny-ImageNet: three 3x3 convolutions of
  64 channels, each with GroupNorm of 4 groups, ReLU and 2x2 max-pooling, hidden layers
  of 512 and 384 units.
* `univarfl_cnn`: the UniVarFL paper describes its small CNN in an appendix that we do
  not have. This is an ASSUMPTION, which the recipes do not make: the simple CNN of MOON
  and of most of this line of work, which is LeNet-5 with ReLU: two 5x5 convolutions of
  6 and 16 channels without padding, each with ReLU and 2x2 max-pooling, hidden layers
  of 120 and 84 units, no norm (62,006 parameters with 10 classes and images of
  32x32x3).
* `feduv_cnn`: the small CNN of FedUV's code, which UniVarFL follows: eight convolutions
  without padding or biases, each with BatchNorm and ReLU, 3x3 and 1x1 of 16 channels,
  3x3 (stride 2), 3x3 and 1x1 of 32, the same of 64; global average pooling (161,594
  parameters with 10 classes and the projector `feduv`).

Everything is initialised as PyTorch does by default, as in these authors' code: uniform
within 1/sqrt(fan-in), kernels and biases alike. The first three networks' convolutions
have biases, with a norm too. Pooling drops the last row or column of an odd number.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tff_reg.models import block_model, conv_units, layers, pooling, resnet

_POOL = functools.partial(pooling.max_pool, size=2, stride=2)


def _build(
    model_name: str,
    channels: Sequence[int],
    hidden: Sequence[int],
    *,
    kernel_size: int,
    padding: int,
    minimum_side: int,
    input_shape: Sequence[int],
    **options: Any,
) -> block_model.BlockModel:
    """Builds one of the first three networks of the module's docstring.

    Args:
      model_name: For the message about images that are too small.
      channels: Output channels of the convolutions.
      hidden: Units of the hidden layers.
      kernel_size: Of the convolutions.
      padding: Of the convolutions.
      minimum_side: Smallest height and width of an image.
      input_shape: (height, width, channels) of an image.
      **options: The others of `conv_units.build`.

    Returns:
      A `BlockModel` with the blocks conv1, conv2, ..., classifier; the classifier
      holds the hidden layers. It cannot run at a fraction of its width.

    Raises:
      block_model.ImageSizeError: If the images are smaller than the network takes.
    """
    block_model.check_image_size(model_name, input_shape, minimum_side)
    height, width, _ = input_shape
    for _ in channels:
        height, width = (
            (side + 2 * padding - kernel_size + 1) // 2 for side in (height, width)
        )
    features = height * width * channels[-1]
    return conv_units.build(
        [
            conv_units.Convolution(each, kernel_size, padding=padding, pool=_POOL)
            for each in channels
        ],
        functools.partial(conv_units.HiddenLayersClassifier, features, hidden),
        input_shape=input_shape,
        use_bias=True,
        initializer=layers.uniform_fan_in,
        **options,
    )


def feddyn_cnn(*, norm: str = "none", **options: Any) -> block_model.BlockModel:
    """FedDyn's CNN for CIFAR; options as in `_build`. Images from 16x16."""
    return _build(
        "feddyn_cnn",
        (64, 64),
        (384, 192),
        kernel_size=5,
        padding=0,
        minimum_side=16,
        norm=norm,
        **options,
    )


def man_convnet(*, norm: str = "group", **options: Any) -> block_model.BlockModel:
    """MAN's ConvNet for Tiny-ImageNet; options as in `_build`. Images from 8x8."""
    return _build(
        "man_convnet",
        (64, 64, 64),
        (512, 384),
        kernel_size=3,
        padding=1,
        groups=4,
        minimum_side=8,
        norm=norm,
        **options,
    )


def univarfl_cnn(*, norm: str = "none", **options: Any) -> block_model.BlockModel:
    """UniVarFL's small CNN, as assumed; options as in `_build`. Images from 16x16."""
    return _build(
        "univarfl_cnn",
        (6, 16),
        (120, 84),
        kernel_size=5,
        padding=0,
        minimum_side=16,
        norm=norm,
        **options,
    )


_FEDUV = tuple(
    conv_units.Convolution(channels, size, stride)
    for channels, size, stride in (
        (16, 3, 1),
        (16, 1, 1),
        (32, 3, 2),
        (32, 3, 1),
        (32, 1, 1),
        (64, 3, 2),
        (64, 3, 1),
        (64, 1, 1),
    )
)


def feduv_cnn(
    *, input_shape: Sequence[int], norm: str = "batch", **options: Any
) -> block_model.BlockModel:
    """FedUV's small CNN. Images from 21x21.

    Args:
      input_shape: (height, width, channels) of an image.
      norm: 'batch' or 'group', after every convolution.
      **options: The others of `conv_units.build`.

    Returns:
      A `BlockModel` with the blocks conv1, ..., conv8, classifier.

    Raises:
      block_model.ImageSizeError: If the images are smaller than the network takes.
    """
    block_model.check_image_size("feduv_cnn", input_shape, 21)
    return conv_units.build(
        _FEDUV,
        functools.partial(resnet.PoolingClassifier, _FEDUV[-1].channels),
        input_shape=input_shape,
        norm=norm,
        initializer=layers.uniform_fan_in,
        **options,
    )
