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

from tff_reg.models import block_model, conv_units, layers, pooling, resnet

_POOL = functools.partial(pooling.max_pool, size=2, stride=2)


def _build(
    model_name: str,
    channels: Sequence[int],
    hidden: Sequence[int],
    *,
    kernel_size: int,
    padding: int,
    groups: int = 2,
    minimum_side: int,
    input_shape: Sequence[int],
    num_classes: int,
    norm: str,
    projector: str = "none",
    seed: int = 0,
    dtype: str = "float32",
) -> block_model.BlockModel:
    """Builds one of the networks of the module's docstring.

    Args:
      model_name: For the message about images that are too small.
      channels: Output channels of the convolutions.
      hidden: Units of the hidden layers.
      kernel_size: Of the convolutions.
      padding: Of the convolutions.
      groups: Of group normalisation.
      minimum_side: Smallest height and width of an image.
      input_shape: (height, width, channels) of an image.
      num_classes: Number of logits.
      norm: 'group', 'batch' or 'none', after every convolution.
      projector: 'none', 'moon' or 'univarfl' (see `classifiers`).
      seed: Seed of the initial weights; the same seed gives the same weights.
      dtype: 'float32' or 'float64'.

    Returns:
      A `BlockModel` with the blocks conv1, conv2, ..., classifier; the classifier
      holds the hidden layers. It cannot run at a fraction of its width.

    Raises:
      block_model.ImageSizeError: If the images are smaller than the network takes.
    """
    block_model.check_image_size(model_name, input_shape, minimum_side)
    seeds = layers.Seeds(seed)
    height, width, in_channels = input_shape
    blocks = []
    for number, out_channels in enumerate(channels, start=1):
        convolution = functools.partial(
            layers.Conv2D,
            in_channels,
            out_channels,
            kernel_size,
            seeds,
            padding=padding,
            use_bias=True,
            initializer=layers.uniform_fan_in,
        )
        blocks.append(
            conv_units.ConvUnit(
                convolution,
                out_channels,
                norm=norm,
                groups=groups,
                pool=_POOL,
                name=f"conv{number}",
                dtype=dtype,
            )
        )
        in_channels = out_channels
        height, width = (
            (side + 2 * padding - kernel_size + 1) // 2 for side in (height, width)
        )
    blocks.append(
        conv_units.HiddenLayersClassifier(
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
        has_independent_examples=norm != "batch",
    )


def feddyn_cnn(*, norm: str = "none", **options) -> block_model.BlockModel:
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


def man_convnet(*, norm: str = "group", **options) -> block_model.BlockModel:
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


def univarfl_cnn(*, norm: str = "none", **options) -> block_model.BlockModel:
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


# Kernel size, channels and stride of each convolution.
_FEDUV_SHAPES = (
    (3, 16, 1),
    (1, 16, 1),
    (3, 32, 2),
    (3, 32, 1),
    (1, 32, 1),
    (3, 64, 2),
    (3, 64, 1),
    (1, 64, 1),
)


def feduv_cnn(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    norm: str = "batch",
    projector: str = "none",
    seed: int = 0,
    dtype: str = "float32",
) -> block_model.BlockModel:
    """FedUV's small CNN. Images from 21x21.

    Args:
      input_shape: (height, width, channels) of an image.
      num_classes: Number of logits.
      norm: 'batch' or 'group', after every convolution.
      projector: One of `names.PROJECTOR_NAMES` (see `classifiers`).
      seed: Seed of the initial weights; the same seed gives the same weights.
      dtype: 'float32' or 'float64'.

    Returns:
      A `BlockModel` with the blocks conv1, ..., conv8, classifier.

    Raises:
      block_model.ImageSizeError: If the images are smaller than the network takes.
    """
    block_model.check_image_size("feduv_cnn", input_shape, 21)
    seeds = layers.Seeds(seed)
    blocks, in_channels = [], input_shape[-1]
    for number, (size, channels, stride) in enumerate(_FEDUV_SHAPES, start=1):
        convolution = functools.partial(
            layers.Conv2D,
            in_channels,
            channels,
            size,
            seeds,
            stride=stride,
            initializer=layers.uniform_fan_in,
        )
        blocks.append(
            conv_units.ConvUnit(
                convolution, channels, norm=norm, name=f"conv{number}", dtype=dtype
            )
        )
        in_channels = channels
    blocks.append(
        resnet.PoolingClassifier(
            in_channels,
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
        has_independent_examples=norm == "group",
    )
