"""Plain CNNs: convolutions one after another, most with hidden layers.

* `cnn`: a small network that is quick to train: two 3x3 convolutions of 32 and 64
  channels, each with ReLU and 2x2 max-pooling, and a hidden layer of 128 units. Images
  can have any size; the convolutions have biases only without a norm.
* `vgg9`: a backbone of the FedMLB paper (Table 9): six 3x3 convolutions with biases,
  each with a norm and ReLU, every second one with 2x2 max-pooling; then average pooling
  to 4x4, two hidden layers of 512 units (Simonyan and Zisserman, ICLR 2015, as reduced
  for CIFAR by FedMA: without a norm and with 10 classes it has FedMA's 3,491,530
  parameters). FedMLB's public code has only ResNet-18. This is the VGG-9 that the same
  group published with FedACG (CVPR 2024): GroupNorm of two groups after every
  convolution, no dropout, and FedMLB's division into M = 7 blocks: every convolution,
  and the classifier with the hidden layers. As there, kernels of convolutions are drawn
  from a normal distribution of variance 2 / (9 output channels), their biases are zero,
  and linear layers have PyTorch's initialisation.
* `feddyn_cnn`: FedDyn's network for CIFAR, which the MAN paper uses: two 5x5
  convolutions of 64 channels without padding, each followed by ReLU and 2x2
  max-pooling, hidden layers of 384 and 192 units, no norm (797,962 parameters with 10
  classes and images of 32x32x3).
* `man_convnet`: the MAN authors' ConvNet for Tiny-ImageNet: three 3x3 convolutions of
  64 channels, each with GroupNorm of 4 groups, ReLU and 2x2 max-pooling, hidden layers
  of 512 and 384 units.
* `univarfl_cnn`: the UniVarFL paper describes its small CNN in an appendix that we do
  not have. This is an ASSUMPTION, which the recipes do not make: the simple CNN of MOON
  and of most related work, LeNet-5 with ReLU: two 5x5 convolutions of 6 and 16 channels
  without padding, each with ReLU and 2x2 max-pooling, hidden layers of 120 and 84
  units, no norm (62,006 parameters with 10 classes and images of 32x32x3).
* `feduv_cnn`: the small CNN of FedUV's code, which UniVarFL follows: eight convolutions
  without padding or biases, each with BatchNorm and ReLU, 3x3 and 1x1 of 16 channels,
  3x3 (stride 2), 3x3 and 1x1 of 32, the same of 64; global average pooling (161,594
  parameters with 10 classes and the projector `feduv`).

The last four have PyTorch's default initialisation, as in these authors' code: kernels
and biases are uniform within 1/sqrt(fan-in). The convolutions of all but `cnn` and
`feduv_cnn` have biases, even with a norm. Pooling drops the last row or column of an
odd number, except in `cnn`. Images must have at least `minimum_side` rows and columns.
No plain CNN can run at a fraction of its width.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_reg.models import block_model, conv_units, layers, pooling


class Convolution(NamedTuple):
    """A convolution of a plain CNN.

    Attributes:
      channels: Output channels.
      kernel_size: Height and width of the kernel.
      stride: Stride of both axes.
      padding: Zeros added on every side.
      pool: TensorFlow's padding of the 2x2 max-pooling that follows, or None.
    """

    channels: int
    kernel_size: int
    stride: int = 1
    padding: int = 0
    pool: Optional[str] = None

    def side(self, side: int) -> int:
        """Returns the output's height or width for the input's height or width."""
        side = (side + 2 * self.padding - self.kernel_size) // self.stride + 1
        if self.pool is None:
            return side
        return side // 2 if self.pool == "VALID" else (side + 1) // 2


def _pool(x, padding: str):
    return tf.nn.max_pool2d(x, ksize=2, strides=2, padding=padding)


def build_cnn(
    model_name: str,
    convolutions: Sequence[Convolution],
    hidden: Sequence[int],
    *,
    input_shape: Sequence[int],
    norm: str,
    minimum_side: int,
    final_side: Optional[int] = None,
    groups: int = 2,
    use_bias: Optional[bool] = None,
    initializers: Sequence[Any] = (layers.uniform_fan_in, layers.uniform_bias),
    **options: Any,
) -> block_model.BlockModel:
    """Builds a plain CNN; see the module's docstring for the shapes."""
    block_model.check_image_size(model_name, input_shape, minimum_side)
    *sides, channels = input_shape
    blocks = {}
    for number, each in enumerate(convolutions, start=1):
        convolution = functools.partial(
            layers.Conv2D,
            channels,
            each.channels,
            each.kernel_size,
            stride=each.stride,
            padding=each.padding,
            use_bias=norm == "none" if use_bias is None else use_bias,
            initializer=initializers[0],
            bias_initializer=initializers[1],
        )
        pool = functools.partial(_pool, padding=each.pool) if each.pool else None
        blocks[f"conv{number}"] = functools.partial(
            conv_units.ConvUnit, convolution, groups=groups, pool=pool
        )
        channels, sides = each.channels, [each.side(side) for side in sides]
    last = _classifier(channels, sides, hidden, final_side)
    return conv_units.build(blocks, last, input_shape=input_shape, norm=norm, **options)


def _classifier(
    channels: int,
    sides: Sequence[int],
    hidden: Sequence[int],
    final_side: Optional[int],
) -> conv_units.Maker:
    """Returns the maker of a classifier for features [batch, *sides, channels]."""
    if not hidden:
        return functools.partial(conv_units.PoolingClassifier, channels)
    pool = None
    if final_side is not None:
        sides = [final_side, final_side]
        pool = functools.partial(
            pooling.adaptive_average_pool, height=final_side, width=final_side
        )
    return functools.partial(
        conv_units.HiddenLayersClassifier,
        (*sides, channels),
        hidden,
        pool=pool,
    )


def _convolutions(channels: Sequence[int], *shape: Any, **options: Any):
    return [Convolution(each, *shape, **options) for each in channels]


cnn = functools.partial(
    build_cnn,
    "cnn",
    _convolutions((32, 64), 3, padding=1, pool="SAME"),
    (128,),
    minimum_side=1,
    initializers=(layers.he_normal_fan_out, layers.uniform_bias),
)
vgg9 = functools.partial(
    build_cnn,
    "vgg9",
    [
        Convolution(channels, 3, padding=1, pool=pool)
        for channels, pool in zip((32, 64, 128, 128, 256, 256), (None, "VALID") * 3)
    ],
    (512, 512),
    minimum_side=8,
    final_side=4,
    use_bias=True,
    initializers=(layers.he_normal_fan_out, layers.zero_bias),
)
feddyn_cnn = functools.partial(
    build_cnn,
    "feddyn_cnn",
    _convolutions((64, 64), 5, pool="VALID"),
    (384, 192),
    minimum_side=16,
    use_bias=True,
)
man_convnet = functools.partial(
    build_cnn,
    "man_convnet",
    _convolutions((64, 64, 64), 3, padding=1, pool="VALID"),
    (512, 384),
    minimum_side=8,
    groups=4,
    use_bias=True,
)
univarfl_cnn = functools.partial(
    build_cnn,
    "univarfl_cnn",
    _convolutions((6, 16), 5, pool="VALID"),
    (120, 84),
    minimum_side=16,
    use_bias=True,
)
feduv_cnn = functools.partial(
    build_cnn,
    "feduv_cnn",
    [
        *(Convolution(16, 3), Convolution(16, 1)),
        *(Convolution(32, 3, 2), Convolution(32, 3), Convolution(32, 1)),
        *(Convolution(64, 3, 2), Convolution(64, 3), Convolution(64, 1)),
    ],
    (),
    minimum_side=21,
    use_bias=False,
)
