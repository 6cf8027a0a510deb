"""MobileNetV2 for small images, a backbone of the FedMLB paper (Table 9).

Mark Sandler, Andrew Howard, Menglong Zhu, Andrey Zhmoginov, Liang-Chieh Chen.
"MobileNetV2: Inverted Residuals and Linear Bottlenecks." CVPR 2018.

A unit widens its input by a 1x1 convolution, applies a depthwise convolution, and
narrows the result by a 1x1 convolution without a non-linearity; if neither the size nor
the channels change, the unit adds its input. `_STAGES` has the stages' channels, units
and strides.

FedMLB's public code has only ResNet-18. This is the network that the same group
published with FedACG (CVPR 2024), a common CIFAR variant: the stem is a 1x1 convolution
with a padding of 1, only stages 2 to 4 halve the resolution, convolutions have biases,
norms are GroupNorm of two groups, and the initialisation is PyTorch's default. There,
FedMLB divides it into M = 8 blocks: the stem, stages 1 to 6, and the classifier with
stage 7, the last 1x1 convolution, global average pooling and the linear layer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tff_reg.models import block_model, conv_units, layers

ForwardPass = layers.ForwardPass

_STEM = 32
# Per stage: output channels, number of units, stride of the first unit, expansion.
_STAGES = (
    (16, 1, 1, 1),
    (24, 2, 2, 6),
    (32, 3, 2, 6),
    (64, 4, 2, 6),
    (96, 3, 1, 6),
    (160, 3, 1, 6),
    (320, 1, 1, 6),
)
_FEATURES = 1280


def _pointwise(in_channels, channels, activation=tf.nn.relu6, **options):
    """Maker of a 1x1 convolution with its norm and non-linearity."""
    convolution = conv_units.torch_conv(in_channels, channels, 1, **options)
    return functools.partial(conv_units.ConvUnit, convolution, activation=activation)


class InvertedResidual(layers.ForwardLayer):
    """A unit: widening, depthwise convolution, narrowing, and adding the input."""

    def make(self, in_channels, channels, stride, expansion, branch_index, **options):
        self._branch_index = branch_index
        hidden = expansion * in_channels
        options["dtype"] = self.dtype
        self.widen = _pointwise(in_channels, hidden)(name="widen", **options)
        depthwise = functools.partial(
            layers.DepthwiseConv2D, hidden, 3, stride=stride, padding=1
        )
        self.depthwise = conv_units.ConvUnit(
            depthwise, activation=tf.nn.relu6, name="depthwise", **options
        )
        self.narrow = _pointwise(hidden, channels, None)(name="narrow", **options)

    def call(self, x, forward: ForwardPass):
        def branch():
            y = self.depthwise(self.widen(x, forward), forward)
            return self.narrow(y, forward)

        if self._branch_index is None:
            return branch()
        return layers.residual_sum(forward, self._branch_index, x, branch)


def _last_stage(*args, name, **options):
    # An empty scope, so that its variables are named like those of the other stages.
    with tf.name_scope(""):
        return conv_units.Stage(*args, name=name, **options)


def mobilenet(
    *, input_shape: Sequence[int], norm: str = "group", **options: Any
) -> block_model.BlockModel:
    """Builds MobileNetV2."""
    blocks = {"stem": _pointwise(input_shape[-1], _STEM, padding=1)}
    in_channels, num_branches = _STEM, 0
    units = []
    for number, (channels, num_units, first_stride, expansion) in enumerate(
        _STAGES, start=1
    ):
        units = []
        for unit in range(num_units):
            stride = 1 if unit else first_stride
            is_residual = stride == 1 and in_channels == channels
            index = num_branches if is_residual else None
            units.append(
                functools.partial(
                    InvertedResidual, in_channels, channels, stride, expansion, index
                )
            )
            num_branches += is_residual
            in_channels = channels
        blocks[f"stage{number}"] = functools.partial(conv_units.Stage, units)
    del blocks["stage7"]
    before = {
        "stage7": functools.partial(_last_stage, units),
        "features": _pointwise(in_channels, _FEATURES),
    }
    return conv_units.build(
        blocks,
        functools.partial(conv_units.PoolingClassifier, _FEATURES, before),
        input_shape=input_shape,
        norm=norm,
        num_branches=num_branches,
        supports_width=True,
        **options,
    )
